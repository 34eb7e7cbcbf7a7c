/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transparent huge pages under files in memory.  A page of 2 MiB is mapped as
 * one only where address and offset in the file agree to 2 MiB.
 */
#ifndef ENGRAM_SHM_HUGE_H
#define ENGRAM_SHM_HUGE_H

#include "segment_writer.h"

#define SEGMENT_HUGE_PAGE (UINT64_C(2) << 20)

/* mmap, shared, at an address that huge pages of the file can be mapped at;
 * whole pages of page_bytes (segment_page_bytes).  MAP_FAILED and errno. */
void *segment_mmap(int fd, uint64_t offset, uint64_t bytes, int protection,
		   uint64_t page_bytes);

/* Ask for huge pages in a mapping that has no pages yet; advice, where the
 * backing's are not huge anyway and it was not told to leave it. */
void segment_want_huge(const struct engram_segment_writer *w);
int segment_wants_huge(const struct engram_segment_writer *w);

/*
 * Put huge pages behind [offset, offset + bytes), whole ones: 0, or -errno if
 * some could not be had.  Also 0 where the kernel can not be asked (before
 * 6.1).  Contents stay, whoever writes to them meanwhile.
 */
int segment_make_huge(const struct engram_segment_writer *w, uint64_t offset,
		      uint64_t bytes);

#endif
