/* SPDX-License-Identifier: Apache-2.0 */
/* How far a job is, in numbers for people. */
#ifndef ENGRAMD_FIGURES_H
#define ENGRAMD_FIGURES_H

#include "jobs.h"

struct figures {
	uint64_t total, done; /* bytes, of the present phase */
	double rate;	      /* bytes a second */
	double eta;	      /* seconds; negative: not known */
};

/* Of all, and of the i-th layer of job->progress.  Loop thread. */
struct figures figures_of_job(const struct job *job);
struct figures figures_of_layer(const struct job *job, uint32_t i);

#endif
