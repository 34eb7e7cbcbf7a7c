/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a crash or `shutdown --keep`: the segments of a former engramd of this
 * instance become a generation again, if they are what would be loaded now.
 */
#ifndef ENGRAMD_ADOPT_H
#define ENGRAMD_ADOPT_H

#include "load.h"

/* Has a former engramd left published segments of this table? */
bool adopt_has_left(const struct engram_backing *backing, const char *instance,
		    const char *table);

/*
 * The newest generation of the table of which every layer is there and equal
 * to its spec, or NULL; of one with several copies, in one of them at least
 * (load_mend makes the others).  Whatever else was left of the table is
 * removed, so that there is room for a load, and *refused says what was wrong
 * with the newest (ENGRAM_OK: nothing was left).  Records are not read.
 *
 * An error when memory or descriptors ran out, which is no fault of what was
 * left: all of it stays, for another try.
 */
enum engram_status adopt_generation(
	const struct load *load, const struct engram_segment_spec *const *specs,
	uint32_t num_layers, struct generation **out,
	struct engram_error *refused, struct engram_error *err);

#endif
