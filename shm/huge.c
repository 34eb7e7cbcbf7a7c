/* SPDX-License-Identifier: Apache-2.0 */
#include "huge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nodes.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define SMALL_PAGE 4096
/* Pages that are being looked at by others are let go of in no time. */
#define COLLAPSE_TRIES 4

void *segment_mmap(int fd, uint64_t offset, uint64_t bytes, int protection,
		   uint64_t page_bytes)
{
	const uint64_t slack = SEGMENT_HUGE_PAGE;
	uint64_t skip;
	char *room, *p;

	/* The kernel places hugetlb pages by itself. */
	if (bytes < SEGMENT_HUGE_PAGE || page_bytes >= SEGMENT_HUGE_PAGE)
		return mmap(NULL, bytes, protection, MAP_SHARED, fd,
			    (off_t)offset);
	/* Addresses only; what is not used of them is given back. */
	room = mmap(NULL, bytes + slack, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return MAP_FAILED;
	skip = (offset - (uintptr_t)room) % slack;
	p = mmap(room + skip, bytes, protection, MAP_SHARED | MAP_FIXED, fd,
		 (off_t)offset);
	if (p == MAP_FAILED) {
		const int saved = errno;

		munmap(room, bytes + slack);
		errno = saved;
		return MAP_FAILED;
	}
	if (skip)
		munmap(room, skip);
	munmap(p + bytes, slack - skip);
	return p;
}

int segment_wants_huge(const struct engram_segment_writer *w)
{
	return w->backing.huge != ENGRAM_HUGE_OFF &&
	       w->page_bytes < SEGMENT_HUGE_PAGE;
}

void segment_want_huge(const struct engram_segment_writer *w)
{
	/* For kernels and mounts that give them to who asks (huge=advise). */
	if (segment_wants_huge(w))
		(void)madvise(w->base, w->map_bytes, MADV_HUGEPAGE);
}

static int collapse(char *begin, uint64_t bytes)
{
	int i;

	for (i = 0; i < COLLAPSE_TRIES; i++) {
		if (!madvise(begin, bytes, MADV_COLLAPSE))
			return 0;
		if (errno != EAGAIN && errno != EBUSY && errno != EINTR)
			break;
	}
	return errno == EINVAL || errno == ENOSYS ? 0 : -errno;
}

/*
 * The kernel is not asked to fault in huge pages, which takes a mount option
 * that /dev/shm does not have, but to make one of what there is in each 2 MiB:
 * one small page, and holes, which read as zeros.  It does that for anybody,
 * whatever the mount says, and several times faster than it faults in small
 * ones.
 */
int segment_make_huge(const struct engram_segment_writer *w, uint64_t offset,
		      uint64_t bytes)
{
	uint64_t at, page;

	/* The huge page comes from the small one's node. */
	for (at = offset; at < offset + bytes; at += SEGMENT_HUGE_PAGE) {
		page = segment_turn_page(w, at) * SMALL_PAGE;
		(void)madvise(w->base + at + page, SMALL_PAGE,
			      MADV_POPULATE_WRITE);
	}
	return collapse(w->base + offset, bytes);
}

/* What a line of smaps adds to the two sums. */
static void add_line(const char *line, uint64_t *mapped, uint64_t *huge)
{
	static const struct {
		const char *key;
		int mapped, huge; /* which sums it belongs to */
	} keys[] = {
		{"Rss:", 1, 0}, /* without those of hugetlb */
		{"ShmemPmdMapped:", 0, 1},
		{"FilePmdMapped:", 0, 1},
		{"Shared_Hugetlb:", 1, 1},
		{"Private_Hugetlb:", 1, 1},
	};
	uint64_t kib;
	size_t i;

	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const size_t len = strlen(keys[i].key);

		if (strncmp(line, keys[i].key, len) != 0)
			continue;
		kib = strtoull(line + len, NULL, 10);
		*mapped += keys[i].mapped ? kib * 1024 : 0;
		*huge += keys[i].huge ? kib * 1024 : 0;
	}
}

enum engram_status engram_segment_huge(const struct engram_segment_writer *w,
				       uint64_t *mapped, uint64_t *huge,
				       struct engram_error *err)
{
	const uint64_t begin = (uintptr_t)w->base, end = begin + w->map_bytes;
	enum engram_status status;
	uint64_t from, to;
	char line[512];
	int here = 0;
	FILE *f = fopen("/proc/self/smaps", "re");

	*mapped = *huge = 0;
	if (!f) {
		status = engram_error_sys(err, errno, "/proc/self/smaps");
		engram_error_fix(err, "mount /proc");
		return status;
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) != 2) {
			if (here)
				add_line(line, mapped, huge);
			continue;
		}
		here = from < end && to > begin;
		if (from >= end)
			break;
	}
	fclose(f);
	return ENGRAM_OK;
}
