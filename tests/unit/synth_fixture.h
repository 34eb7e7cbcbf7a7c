/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of engram-synth for C tests; the program is found beside the
 * test's own. */
#ifndef SYNTH_FIXTURE_H
#define SYNTH_FIXTURE_H

#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "segment_fixture.h"

static inline void synth_run(const char *const *words)
{
	int status;
	pid_t pid;

	CHECK(posix_spawn(&pid, words[0], NULL, NULL, (char *const *)words,
			  environ) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Two layers, 1 and 14, of a few rows, in `dir`/model. */
static inline void synth_make(const char *self, char *dir, char model[64])
{
	char synth[PATH_MAX], copy[PATH_MAX - 32];

	snprintf(copy, sizeof(copy), "%s", self);
	snprintf(synth, sizeof(synth), "%s/../bin/engram-synth", dirname(copy));
	CHECK(mkdtemp(dir));
	snprintf(model, 64, "%s/model", dir);
	synth_run((const char *const[]){
		synth, "--engram-vocab-size", "20", "--heads", "2", "--dim",
		"32", "--max-ngram", "2", "--vocab-size", "32",
		"--compressed-vocab-size", "20", model, NULL});
}

static inline void synth_remove(const char *dir)
{
	synth_run((const char *const[]){"/bin/rm", "-r", dir, NULL});
}

#endif
