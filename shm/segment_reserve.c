/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind a segment: allocated and faulted in ahead of who writes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>

#include "backing.h"
#include "huge.h"
#include "segment_writer.h"

/* Pages are allocated in pieces of this size: a signal throws away at most
 * one piece's work, and others get a turn at the file system's lock. */
#define RESERVE_BYTES (UINT64_C(64) << 20)

/* The backing is full: say how much was asked for and what there is.  A memfd
 * has no limit of its own to compare with. */
static enum engram_status no_space(const struct engram_segment_writer *w,
				   uint64_t needed, int sys_errno,
				   struct engram_error *err)
{
	uint64_t room;

	if (!engram_backing_room(&w->backing, &room, NULL)) {
		engram_error_set(err, ENGRAM_ENOSPACE,
				 "%s: no room for %" PRIu64
				 " more bytes, %" PRIu64 " are free",
				 w->temporary, needed, room);
		engram_error_fix(err,
				 "make %s or the cgroup's memory limit "
				 "larger, or remove leftovers with "
				 "`engramctl prune`",
				 w->backing.dir);
	} else {
		room = 0;
		engram_error_set(err, ENGRAM_ENOSPACE,
				 "%s: no memory for %" PRIu64 " more bytes",
				 w->temporary, needed);
		engram_error_fix(err, "make the cgroup's memory limit larger, "
				      "or free some memory");
	}
	if (err)
		err->sys_errno = sys_errno;
	engram_error_figures(err, needed, room);
	engram_error_path(err, "%s", w->backing.dir);
	return ENGRAM_ENOSPACE;
}

/* For errors that say nothing else: a limit, or a file system that is not
 * what it should be. */
void segment_usual_fix(const struct engram_segment_writer *w,
		       struct engram_error *err)
{
	const char *dir = w->backing.dir;

	if (err && !*err->fix)
		engram_error_fix(err,
				 "check engramd's limits (prlimit, "
				 "vm.max_map_count)%s%s",
				 *dir ? " and what is mounted on " : "", dir);
}

static int allocate(int fd, uint64_t offset, uint64_t bytes)
{
	int r;

	do
		r = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
	while (r && errno == EINTR);
	return r;
}

/* Errnos by which file systems say that memory ran out. */
static int out_of_space(int sys_errno)
{
	return sys_errno == ENOSPC || sys_errno == EDQUOT ||
	       sys_errno == ENOMEM || sys_errno == EFBIG;
}

enum engram_status segment_call_failed(const struct engram_segment_writer *w,
				       const char *call, uint64_t needed,
				       struct engram_error *err)
{
	const int sys_errno = errno;

	if (out_of_space(sys_errno))
		return no_space(w, needed, sys_errno, err);
	return engram_error_sys(err, sys_errno, "%s %s", call, w->temporary);
}

/* Kernels before 5.14: touch each page.  An atomic that changes nothing, as
 * other threads may be writing to pages at the edges. */
static void touch_pages(char *begin, uint64_t bytes, uint64_t page)
{
	uint64_t at;

	for (at = 0; at < bytes; at += page)
		__atomic_fetch_or(begin + at, 0, __ATOMIC_RELAXED);
}

static enum engram_status populate(struct engram_segment_writer *w,
				   uint64_t offset, uint64_t bytes,
				   struct engram_error *err)
{
	int r;

	do
		r = madvise(w->base + offset, bytes, MADV_POPULATE_WRITE);
	while (r && (errno == EINTR || errno == EAGAIN));
	if (!r)
		return ENGRAM_OK;
	if (errno == EINVAL || errno == ENOSYS) {
		touch_pages(w->base + offset, bytes, w->page_bytes);
		return ENGRAM_OK;
	}
	/* EFAULT: what would have been a SIGBUS. */
	if (out_of_space(errno) || errno == EFAULT)
		return no_space(w, bytes, errno, err);
	return engram_error_sys(err, errno, "populate %s at %" PRIu64,
				w->temporary, offset);
}

/* Huge pages were demanded, and the kernel has none for this piece. */
static enum engram_status not_huge(const struct engram_segment_writer *w,
				   uint64_t left, int sys_errno,
				   struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "%s: no huge pages for %" PRIu64 " more bytes",
			 w->temporary, left);
	if (err)
		err->sys_errno = sys_errno;
	engram_error_fix(err, "free memory in large pieces (sysctl "
			      "vm.drop_caches=3 vm.compact_memory=1) and load "
			      "again, or set memory.huge_pages to \"try\"");
	engram_error_figures(err, left, 0);
	return ENGRAM_ENOSPACE;
}

/* Allocate and fault in whole pages; `left` bytes are still wanted.  Huge ones
 * first: what small ones are in the way of can only be copied. */
static enum engram_status reserve_piece(struct engram_segment_writer *w,
					uint64_t at, uint64_t bytes,
					uint64_t left, struct engram_error *err)
{
	int r = 0;

	if (segment_wants_huge(w))
		r = segment_make_huge(w, at, bytes);
	if (allocate(w->fd, at, bytes))
		return segment_call_failed(w, "fallocate", left, err);
	if (r && w->backing.huge == ENGRAM_HUGE_REQUIRE)
		return not_huge(w, left, -r, err);
	return populate(w, at, bytes, err);
}

enum engram_status engram_segment_reserve(struct engram_segment_writer *w,
					  uint64_t offset, uint64_t bytes,
					  struct engram_error *err)
{
	/* Whole pages, huge ones too. */
	const uint64_t page =
		segment_wants_huge(w) ? SEGMENT_HUGE_PAGE : w->page_bytes;
	const uint64_t most = round_up(RESERVE_BYTES, page);
	enum engram_status status = ENGRAM_OK;
	uint64_t end, at, piece;

	if (offset > w->map_bytes || bytes > w->map_bytes - offset) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "%s: bytes %" PRIu64 "+%" PRIu64
				 " are outside of %" PRIu64,
				 w->temporary, offset, bytes, w->map_bytes);
		engram_error_fix(err, "report this: the caller's sizes are "
				      "not the segment's");
		return ENGRAM_EINVAL;
	}
	if (!bytes)
		return ENGRAM_OK;
	end = round_up(offset + bytes, page);
	at = offset - offset % page;
	for (; at < end && !status; at += piece) {
		piece = end - at < most ? end - at : most;
		status = reserve_piece(w, at, piece, end - at, err);
	}
	if (status)
		segment_usual_fix(w, err);
	return status;
}
