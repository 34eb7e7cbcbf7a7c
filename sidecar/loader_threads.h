/* SPDX-License-Identifier: Apache-2.0 */
/* The same function on several threads, until all have returned. */
#ifndef ENGRAMD_LOADER_THREADS_H
#define ENGRAMD_LOADER_THREADS_H

#include <stdint.h>

#include "engram_error.h"

#define LOADER_THREADS_MAX 64u

/* 0: one a core, at most 8. */
uint32_t loader_threads_wanted(uint32_t configured);

/*
 * Run and wait.  If not all of *threads can be started, those that were do
 * all the work, and *threads says how many; an error if there is none.
 */
enum engram_status loader_threads_run(uint32_t *threads, void *(*work)(void *),
				      void *ctx, struct engram_error *err);

#endif
