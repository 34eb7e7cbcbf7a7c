/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prometheus' text format, version 0.0.4: a family, then its samples.
 */
#ifndef ENGRAMD_EXPOSITION_H
#define ENGRAMD_EXPOSITION_H

#include <stdint.h>

#include "text.h"

#define EXPOSITION_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct exposition {
	struct text out;
	const char *name; /* of the family */
};

/* Names and values, in turn. */
#define LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* "counter" or "gauge"; all samples of a family follow it at once. */
void expose_family(struct exposition *e, const char *name, const char *type,
		   const char *help);
/* `labels` may be NULL. */
void expose_count(struct exposition *e, const char *const *labels,
		  uint64_t value);
void expose_real(struct exposition *e, const char *const *labels, double value);
/* Families of one sample. */
void expose_gauge(struct exposition *e, const char *name, const char *help,
		  double value);
void expose_counter(struct exposition *e, const char *name, const char *help,
		    double value);

#endif
