/* SPDX-License-Identifier: Apache-2.0 */
/* What came of the wish for huge pages, and what would have more come of it. */
#ifndef ENGRAMD_HUGE_PAGES_H
#define ENGRAMD_HUGE_PAGES_H

#include <stddef.h>

#include "generation.h"

/* Read back how much of each layer is mapped by huge pages, and what would
 * help if not all is.  Stays unknown where it can not be read, or where not all
 * has been touched.  By the thread that builds it, before others see it. */
void huge_pages_measure(struct generation *gen,
			const struct engram_backing *backing);

/* ENGRAM_ENOSPACE, with both figures, if they were demanded and are not all
 * there. */
enum engram_status huge_pages_check(const struct generation *gen,
				    const struct engram_backing *backing,
				    struct engram_error *err);

/* The command that would give such a backing (more) huge pages next time, or
 * "". `root` is that of /proc and /sys: "". */
void huge_pages_advice(const char *root, const struct engram_backing *backing,
		       char *out, size_t size);

#endif
