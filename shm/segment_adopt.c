/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that a former owner of the instance has left. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing.h"
#include "huge.h"
#include "segment_writer.h"

/* Only a process of our own user could have made it as we would. */
static enum engram_status check_owner(int fd, const char *name,
				      struct engram_error *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return engram_error_sys(err, errno, "stat %s", name);
	if (st.st_uid == geteuid() && S_ISREG(st.st_mode))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EPERM,
			 "%s: a file of user %u, engramd runs as %u", name,
			 (unsigned int)st.st_uid, (unsigned int)geteuid());
	engram_error_fix(err, "run engramd as one user, or remove the file");
	return ENGRAM_EPERM;
}

/* A directory has only what was published; a keeper has what it was given, and
 * somebody could write to it, or cut it short under those who read it. */
static enum engram_status check_seals(const struct engram_segment_writer *w,
				      struct engram_error *err)
{
	int seals;

	if (w->backing.kind != ENGRAM_BACKING_MEMFD)
		return ENGRAM_OK;
	seals = fcntl(w->fd, F_GET_SEALS);
	if (seals < 0)
		return engram_error_sys(err, errno, "seals of %s", w->name);
	if ((seals & SEGMENT_SEALS) == SEGMENT_SEALS)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EDAMAGED,
			 "%s: the memfd is not sealed against writing",
			 w->name);
	engram_error_fix(err, "nothing: it is loaded from the checkpoint");
	return ENGRAM_EDAMAGED;
}

enum engram_status segment_map_all(const struct engram_segment_writer *w,
				   int fd, int prot, char **base,
				   struct engram_error *err)
{
	enum engram_status status;

	*base = segment_mmap(fd, 0, w->map_bytes, prot, w->page_bytes);
	if (*base == MAP_FAILED) {
		*base = NULL;
		return engram_error_sys(err, errno, "mmap %s", w->name);
	}
	if (!madvise(*base, w->map_bytes, MADV_DONTFORK))
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "madvise %s", w->name);
	munmap(*base, w->map_bytes);
	*base = NULL;
	return status;
}

/* The checks of any reader; then the whole file is mapped. */
static enum engram_status map_whole(struct engram_segment_writer *w,
				    struct engram_error *err)
{
	struct engram_segment_map map;
	enum engram_status status;

	status = engram_segment_map_fd(w->fd, 0, 0, &map, err);
	if (status)
		return status;
	w->map_bytes = map.header->total_bytes;
	engram_segment_unmap(&map);
	w->page_bytes = segment_page_bytes(w->fd);
	if (!w->page_bytes)
		return engram_error_sys(err, errno, "fstatfs %s", w->name);
	return segment_map_all(w, w->fd, PROT_READ, &w->base, err);
}

enum engram_status engram_segment_adopt(const struct engram_backing *backing,
					const char *name,
					struct engram_segment_writer **out,
					struct engram_error *err)
{
	struct engram_segment_writer *w = calloc(1, sizeof(*w));
	enum engram_status status;

	*out = NULL;
	if (!w) {
		status = engram_error_sys(err, ENOMEM, "segment writer");
		engram_error_fix(err, "free some memory");
		return status;
	}
	w->backing = *backing;
	strncpy(w->name, name, sizeof(w->name) - 1);
	status = engram_segment_open(backing, name, &w->fd, err);
	if (!status)
		status = check_owner(w->fd, name, err);
	if (!status)
		status = check_seals(w, err);
	if (!status)
		status = map_whole(w, err);
	if (status) {
		segment_usual_fix(w, err);
		engram_error_context(err, "adopt segment");
		segment_writer_close(w);
		return status;
	}
	w->published = 1;
	*out = w;
	return ENGRAM_OK;
}

/* ---- is it what would be built now? ---- */

static enum engram_status differs(const char *what, struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ESOURCECHANGED, "its %s", what);
	engram_error_fix(err, "nothing: it is loaded from the checkpoint");
	return ENGRAM_ESOURCECHANGED;
}

static int same_block(const struct engram_segment_header *h,
		      const struct engram_segment_block *block,
		      const void *want, uint64_t count, size_t element)
{
	return block->count == count &&
	       (!count ||
		!memcmp(engram_segment_at(h, block), want, count * element));
}

static int same_geometry(const struct engram_segment_header *h,
			 const struct engram_segment_header *want)
{
	/* Between these the header holds what follows from the spec alone. */
	const size_t begin = offsetof(struct engram_segment_header, layer_id);
	const size_t end = offsetof(struct engram_segment_header, primes);

	return h->data_offset == want->data_offset &&
	       h->data_bytes == want->data_bytes &&
	       h->chunk_rows == want->chunk_rows &&
	       !memcmp(h->cut_ids, want->cut_ids, sizeof(h->cut_ids)) &&
	       !memcmp((const char *)h + begin, (const char *)want + begin,
		       end - begin);
}

enum engram_status engram_segment_compare(
	const struct engram_segment_header *h,
	const struct engram_segment_spec *spec, struct engram_error *err)
{
	struct engram_segment_header want;
	enum engram_status status =
		engram_segment_plan_header(spec, &want, err);

	if (status)
		return status;
	if (strcmp(h->instance, spec->instance) ||
	    strcmp(h->table, spec->table))
		return differs("names differ", err);
	if (!same_geometry(h, &want))
		return differs("layout or geometry differs", err);
	if (!same_block(h, &h->primes, spec->primes, h->num_cols,
			sizeof(int64_t)) ||
	    !same_block(h, &h->offsets, spec->offsets, h->num_cols,
			sizeof(int64_t)) ||
	    !same_block(h, &h->multipliers, spec->multipliers, h->max_ngram,
			sizeof(int64_t)))
		return differs("hash parameters differ", err);
	if (!same_block(h, &h->token_map, spec->token_map, spec->token_map_len,
			sizeof(int32_t)))
		return differs("token map differs", err);
	if (!same_block(h, &h->sources, spec->sources, spec->num_sources,
			sizeof(struct engram_segment_source)))
		return differs("sources differ", err);
	return ENGRAM_OK;
}
