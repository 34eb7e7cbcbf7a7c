/* SPDX-License-Identifier: Apache-2.0 */
/* A segment from its temporary name to its published one. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backing.h"
#include "failpoint.h"
#include "huge.h"
#include "keeper.h"
#include "nodes.h"
#include "segment_check.h"
#include "segment_writer.h"

static enum engram_status check_spec(const struct engram_segment_spec *spec,
				     struct engram_segment_header *h,
				     struct engram_error *err)
{
	enum engram_status status;

	if (!engram_instance_valid(spec->instance))
		return engram_error_set(err, ENGRAM_EINVAL,
					"\"%s\" is no instance name",
					spec->instance);
	if (!engram_name_valid(spec->table))
		return engram_error_set(err, ENGRAM_EINVAL,
					"\"%s\" is no table name", spec->table);
	if (spec->token_map_len > SEGMENT_VOCAB_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"token map of %" PRIu64
					" entries: at most %" PRIu64,
					spec->token_map_len, SEGMENT_VOCAB_MAX);
	if (spec->num_sources > SEGMENT_SOURCES_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"%" PRIu64 " sources: at most %u",
					spec->num_sources, SEGMENT_SOURCES_MAX);
	status = segment_check_fields(h, ENGRAM_EINVAL, err);
	if (status)
		return status;
	return segment_check_columns(h, spec->primes, spec->offsets,
				     ENGRAM_EINVAL, err);
}

/* The fields that the caller decides; the rest zero. */
static void take_fields(const struct engram_segment_spec *spec,
			struct engram_segment_header *h)
{
	const struct engram_segment_header *from = &spec->head;

	memset(h, 0, sizeof(*h));
	h->generation = spec->generation;
	h->layer_id = from->layer_id;
	h->layer_index = from->layer_index;
	h->record_layout = from->record_layout;
	h->dtype = from->dtype;
	h->scale_scheme = from->scale_scheme;
	h->dim = from->dim;
	h->block_size = from->block_size;
	h->tensor_scale = from->scale_scheme == ENGRAM_SCALE_TENSOR
				  ? from->tensor_scale
				  : 1;
	h->rows = from->rows;
	h->min_ngram = from->min_ngram;
	h->max_ngram = from->max_ngram;
	h->num_heads = from->num_heads;
	h->num_cols = from->num_cols;
	h->pad_id = from->pad_id;
	h->raw_pad_id = from->raw_pad_id;
	h->compressed_vocab_size = from->compressed_vocab_size;
	h->prime_seed = from->prime_seed;
	h->num_cuts = from->num_cuts;
	memcpy(h->cut_ids, from->cut_ids, sizeof(h->cut_ids));
}

static void place_block(struct engram_segment_block *block, uint64_t count,
			size_t element, uint64_t *end)
{
	block->count = count;
	block->offset = count ? *end : 0;
	*end = round_up(*end + count * element, 8);
}

enum engram_status engram_segment_plan_header(
	const struct engram_segment_spec *spec, struct engram_segment_header *h,
	struct engram_error *err)
{
	uint64_t end = sizeof(*h);
	enum engram_status status;

	take_fields(spec, h);
	status = check_spec(spec, h, err);
	if (status)
		goto fault;
	/* Chunks, and with them the header's size, follow from the records;
	 * where the records begin, from the header's size. */
	h->data_offset = ENGRAM_SEGMENT_ALIGN;
	if (!segment_place_rows(h)) {
		status = engram_error_set(
			err, ENGRAM_EINVAL,
			"%" PRIu64 " rows of %" PRIu64 " bytes overflow",
			h->rows, engram_segment_record_bytes(h));
		goto fault;
	}
	place_block(&h->primes, h->num_cols, sizeof(int64_t), &end);
	place_block(&h->offsets, h->num_cols, sizeof(int64_t), &end);
	place_block(&h->multipliers, h->max_ngram, sizeof(int64_t), &end);
	place_block(&h->token_map, spec->token_map_len, sizeof(int32_t), &end);
	place_block(&h->checksums, segment_num_chunks(h), sizeof(uint64_t),
		    &end);
	place_block(&h->sources, spec->num_sources,
		    sizeof(struct engram_segment_source), &end);
	h->data_offset = round_up(end, ENGRAM_SEGMENT_ALIGN);
	segment_place_rows(h);
	return ENGRAM_OK;
fault:
	engram_error_context(err, "table \"%s\" layer %" PRId32, spec->table,
			     h->layer_id);
	engram_error_fix(err, "correct the geometry; it comes from the "
			      "checkpoint's config.json");
	return status;
}

enum engram_status engram_segment_plan(const struct engram_segment_spec *spec,
				       uint64_t *total_bytes,
				       struct engram_error *err)
{
	struct engram_segment_header h;
	enum engram_status status = engram_segment_plan_header(spec, &h, err);

	if (!status)
		*total_bytes = h.total_bytes;
	return status;
}

static void copy_block(char *base, const struct engram_segment_block *block,
		       const void *from, size_t element)
{
	if (block->count)
		memcpy(base + block->offset, from, block->count * element);
}

void segment_write_header(char *base, const struct engram_segment_header *h,
			  const struct engram_segment_spec *spec)
{
	memcpy(base, h, sizeof(*h));
	copy_block(base, &h->primes, spec->primes, sizeof(int64_t));
	copy_block(base, &h->offsets, spec->offsets, sizeof(int64_t));
	copy_block(base, &h->multipliers, spec->multipliers, sizeof(int64_t));
	copy_block(base, &h->token_map, spec->token_map, sizeof(int32_t));
	copy_block(base, &h->sources, spec->sources,
		   sizeof(struct engram_segment_source));
}

static int truncate_retry(int fd, uint64_t bytes)
{
	int r;

	do
		r = ftruncate(fd, (off_t)bytes);
	while (r && errno == EINTR);
	return r;
}

static enum engram_status size_and_map(struct engram_segment_writer *w,
				       struct engram_segment_header *h,
				       struct engram_error *err)
{
	enum engram_status status;
	char *base;

	w->page_bytes = segment_page_bytes(w->fd);
	if (!w->page_bytes)
		return engram_error_sys(err, errno, "fstatfs %s", w->temporary);
	h->total_bytes = round_up(h->total_bytes, w->page_bytes);
	if (truncate_retry(w->fd, h->total_bytes))
		return segment_call_failed(w, "ftruncate", h->total_bytes, err);
	base = segment_mmap(w->fd, 0, h->total_bytes, PROT_READ | PROT_WRITE,
			    w->page_bytes);
	/* hugetlbfs takes the pages out of its pool here. */
	if (base == MAP_FAILED)
		return segment_call_failed(w, "mmap", h->total_bytes, err);
	w->base = base;
	w->map_bytes = h->total_bytes;
	if (madvise(w->base, w->map_bytes, MADV_DONTFORK))
		return engram_error_sys(err, errno, "madvise %s", w->temporary);
	segment_want_huge(w);
	status = segment_set_nodes(w, err);
	return status ? status
		      : engram_segment_reserve(w, 0, h->data_offset, err);
}

enum engram_status segment_begin_header(const struct engram_segment_spec *spec,
					struct engram_segment_header *h,
					struct engram_error *err)
{
	enum engram_status status = engram_segment_plan_header(spec, h, err);
	struct timespec now;

	if (status)
		return status;
	clock_gettime(CLOCK_REALTIME, &now);
	h->created_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	h->state = ENGRAM_SEGMENT_FILLING;
	memcpy(h->instance, spec->instance, strlen(spec->instance));
	memcpy(h->table, spec->table, strlen(spec->table));
	return ENGRAM_OK;
}

void segment_set_names(struct engram_segment_writer *w,
		       const struct engram_segment_spec *spec)
{
	engram_segment_copy_name(w->name, spec->instance, spec->table,
				 spec->head.layer_id, spec->generation,
				 spec->replica);
	snprintf(w->temporary, sizeof(w->temporary), "%.250s%s", w->name,
		 SEGMENT_TEMPORARY);
}

enum engram_status engram_segment_create(const struct engram_backing *backing,
					 const struct engram_segment_spec *spec,
					 struct engram_segment_writer **out,
					 struct engram_error *err)
{
	struct engram_segment_header h;
	struct engram_segment_writer *w;
	enum engram_status status;

	*out = NULL;
	status = segment_begin_header(spec, &h, err);
	if (status)
		return status;
	w = calloc(1, sizeof(*w));
	if (!w) {
		status = engram_error_sys(err, ENOMEM, "segment writer");
		engram_error_fix(err, "free some memory");
		return status;
	}
	w->fd = -1;
	w->backing = *backing;
	segment_set_names(w, spec);
	status = backing_create(backing, w->temporary, &w->fd, err);
	if (status)
		goto fail;
	w->created = backing->kind != ENGRAM_BACKING_MEMFD;
	FAILPOINT(segment_named);
	status = size_and_map(w, &h, err);
	if (status)
		goto fail;
	assert(w->base);
	segment_write_header(w->base, &h, spec);
	FAILPOINT(segment_created);
	*out = w;
	return ENGRAM_OK;
fail:
	segment_usual_fix(w, err);
	engram_error_context(err, "create segment");
	engram_segment_discard(w);
	return status;
}

struct engram_segment_header *engram_segment_writer_header(
	struct engram_segment_writer *w)
{
	return (struct engram_segment_header *)w->base;
}

uint64_t *engram_segment_writer_checksums(struct engram_segment_writer *w)
{
	const struct engram_segment_header *h = engram_segment_writer_header(w);

	return (uint64_t *)(w->base + h->checksums.offset);
}

void *engram_segment_writer_base(struct engram_segment_writer *w)
{
	return w->base;
}

uint64_t engram_segment_writer_page(const struct engram_segment_writer *w)
{
	return w->page_bytes;
}

static void finish_header(struct engram_segment_writer *w)
{
	struct engram_segment_header *h = engram_segment_writer_header(w);

	segment_content_id(h, h->content_id);
	h->header_checksum = segment_header_checksum(h, w->base);
	h->state = ENGRAM_SEGMENT_READY;
	__atomic_store_n(&h->magic, ENGRAM_SEGMENT_MAGIC, __ATOMIC_RELEASE);
	__atomic_store_n(&h->abi_version, ENGRAM_ABI_VERSION, __ATOMIC_RELEASE);
}

/* FUTURE_WRITE leaves our own writable mapping alone, mprotect follows. */
static enum engram_status seal(struct engram_segment_writer *w,
			       struct engram_error *err)
{
	enum engram_status status;

	if (w->backing.kind != ENGRAM_BACKING_MEMFD ||
	    !fcntl(w->fd, F_ADD_SEALS, SEGMENT_SEALS))
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "seal the memfd");
	engram_error_fix(err, "use Linux 5.1 or newer, or the shm backing");
	return status;
}

/* link fails where the name is taken; rename would replace it. */
static enum engram_status give_name(struct engram_segment_writer *w,
				    struct engram_error *err)
{
	char from[SEGMENT_PATH_MAX], to[SEGMENT_PATH_MAX];
	enum engram_status status;

	status = backing_path(from, &w->backing, w->temporary, err);
	if (!status)
		status = backing_path(to, &w->backing, w->name, err);
	if (status)
		return status;
	if (link(from, to)) {
		if (errno == EEXIST) {
			engram_error_set(err, ENGRAM_EEXIST,
					 "%s exists already", to);
			engram_error_fix(err,
					 "unload that generation, or remove "
					 "leftovers with `engramctl prune`");
			engram_error_path(err, "%s", to);
			return ENGRAM_EEXIST;
		}
		return engram_error_sys(err, errno, "link %s", to);
	}
	w->published = 1;
	FAILPOINT(segment_linked);
	if (unlink(from) && errno != ENOENT)
		return engram_error_sys(err, errno, "unlink %s", from);
	w->created = 0;
	return ENGRAM_OK;
}

enum engram_status engram_segment_publish(struct engram_segment_writer *w,
					  struct engram_error *err)
{
	enum engram_status status;

	finish_header(w);
	status = seal(w, err);
	if (status)
		goto fail;
	if (mprotect(w->base, w->map_bytes, PROT_READ)) {
		status = engram_error_sys(err, errno, "mprotect %s", w->name);
		goto fail;
	}
	FAILPOINT(segment_ready);
	if (w->backing.kind != ENGRAM_BACKING_MEMFD) {
		status = give_name(w, err);
	} else {
		/* It is as good without; only the next owner has it not. */
		w->published = keeper_keep(w->backing.keeper, w->name, w->fd);
		FAILPOINT(segment_linked);
	}
	if (!status)
		status = FAILPOINT_STATUS(segment_published, err);
	if (!status)
		return ENGRAM_OK;
fail:
	segment_usual_fix(w, err);
	engram_error_context(err, "publish segment");
	return status;
}

static enum engram_status reopen(const struct engram_segment_writer *w,
				 int access, int *fd, struct engram_error *err)
{
	char path[SEGMENT_PATH_MAX];

	if (backing_path(path, &w->backing,
			 w->published ? w->name : w->temporary, NULL))
		return backing_reopen(w->fd, NULL, access, fd, err);
	return backing_reopen(w->fd, path, access, fd, err);
}

enum engram_status engram_segment_reopen(const struct engram_segment_writer *w,
					 int *fd, struct engram_error *err)
{
	return reopen(w, O_RDONLY, fd, err);
}

enum engram_status engram_segment_reopen_writable(
	const struct engram_segment_writer *w, int *fd,
	struct engram_error *err)
{
	if (w->backing.kind != ENGRAM_BACKING_MEMFD)
		return reopen(w, O_RDWR, fd, err);
	*fd = -1;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "%s: the memfd is sealed against writing", w->name);
	engram_error_fix(err, "use the shm or the hugetlbfs backing");
	return ENGRAM_EUNSUPPORTED;
}

void segment_writer_close(struct engram_segment_writer *w)
{
	if (w->base)
		munmap(w->base, w->map_bytes);
	backing_close(w->fd);
	free(w);
}

static void remove_name(const struct engram_backing *backing, const char *name)
{
	char path[SEGMENT_PATH_MAX];

	if (backing->kind == ENGRAM_BACKING_MEMFD)
		keeper_forget(backing->keeper, name);
	else if (!backing_path(path, backing, name, NULL))
		unlink(path);
}

void engram_segment_discard(struct engram_segment_writer *w)
{
	if (!w)
		return;
	if (w->published)
		remove_name(&w->backing, w->name);
	if (w->created)
		remove_name(&w->backing, w->temporary);
	FAILPOINT(free_unlinked);
	segment_writer_close(w);
}

void engram_segment_leave(struct engram_segment_writer *w)
{
	if (!w)
		return;
	if (w->created)
		remove_name(&w->backing, w->temporary);
	segment_writer_close(w);
}
