/* SPDX-License-Identifier: Apache-2.0 */
/* On which nodes of memory a generation has come to lie. */
#ifndef ENGRAMD_PLACEMENT_H
#define ENGRAMD_PLACEMENT_H

#include "generation.h"

/* Read back how much of each layer is on which node.  Stays unknown where it
 * can not be read, or where not all has been touched.  By the thread that
 * builds it, before others see it. */
void placement_measure(struct generation *gen,
		       const struct engram_backing *backing);

/* `backing` is one that numa_resolve has seen.  ENGRAM_ENOSPACE, with both
 * figures, if what was bound to nodes is not all there; a warning if what was
 * to be interleaved is not even. */
enum engram_status placement_check(const struct generation *gen,
				   const struct engram_backing *backing,
				   struct engram_error *err);

#endif
