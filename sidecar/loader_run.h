/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a load, from their start to their end. */
#ifndef ENGRAMD_LOADER_RUN_H
#define ENGRAMD_LOADER_RUN_H

#include "loader_worker.h"

/*
 * Run `*threads` workers, and `populators` beside them, until the load has
 * ended, well or not (shared->status).  If not all can be started, *threads
 * says how many could; an error if there is none.  With `tune`, its settings
 * are tried meanwhile; *tuned: to the end.
 */
enum engram_status loader_run(struct loader_shared *shared, uint32_t *threads,
			      uint32_t populators, struct loader_tune *tune,
			      bool *tuned, struct engram_error *err);

#endif
