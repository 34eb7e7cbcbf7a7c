/* SPDX-License-Identifier: Apache-2.0 */
/* A published segment that becomes the next generation's, in place. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "backing.h"
#include "failpoint.h"
#include "segment_writer.h"

/* The name of what differs, or NULL. */
static const char *difference(const struct engram_segment_header *h,
			      const struct engram_segment_header *want,
			      const struct engram_segment_spec *spec)
{
	const size_t columns = h->num_cols * sizeof(int64_t);

	if (h->layer_id != want->layer_id)
		return "layer id";
	if (h->rows != want->rows)
		return "number of rows";
	if (h->record_layout != want->record_layout ||
	    h->dtype != want->dtype || h->scale_scheme != want->scale_scheme ||
	    h->dim != want->dim || h->block_size != want->block_size)
		return "layout of a row";
	if (h->num_cols != want->num_cols || h->max_ngram != want->max_ngram ||
	    memcmp(engram_segment_at(h, &h->primes), spec->primes, columns) ||
	    memcmp(engram_segment_at(h, &h->offsets), spec->offsets, columns))
		return "division into heads";
	if (h->token_map.count != want->token_map.count)
		return "length of the token map";
	if (h->data_offset != want->data_offset ||
	    h->data_bytes != want->data_bytes)
		return "size of the header";
	return NULL;
}

enum engram_status engram_segment_check_overwrite(
	const struct engram_backing *backing,
	const struct engram_segment_header *h,
	const struct engram_segment_spec *spec, struct engram_error *err)
{
	struct engram_segment_header want;
	enum engram_status status;
	const char *differs;

	if (backing->kind == ENGRAM_BACKING_MEMFD) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "a memfd is sealed against being overwritten");
		engram_error_fix(err, "use the shm or the hugetlbfs backing");
		return ENGRAM_EUNSUPPORTED;
	}
	status = engram_segment_plan_header(spec, &want, err);
	if (status)
		return status;
	differs = difference(h, &want, spec);
	if (!differs)
		return ENGRAM_OK;
	return engram_error_set(err, ENGRAM_EGEOMETRY,
				"layer %d can not be overwritten: the %s "
				"differs",
				(int)h->layer_id, differs);
}

/* One that was adopted is mapped by a descriptor that can not write. */
static enum engram_status map_again(struct engram_segment_writer *w,
				    struct engram_error *err)
{
	enum engram_status status;
	char *base;
	int fd;

	status = engram_segment_reopen_writable(w, &fd, err);
	if (status)
		return status;
	status = segment_map_all(w, fd, PROT_READ | PROT_WRITE, &base, err);
	if (status) {
		backing_close(fd);
		return status;
	}
	munmap(w->base, w->map_bytes);
	w->base = base;
	backing_close(w->fd);
	w->fd = fd;
	return ENGRAM_OK;
}

enum engram_status engram_segment_unprotect(struct engram_segment_writer *w,
					    struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	if (!mprotect(w->base, w->map_bytes, PROT_READ | PROT_WRITE))
		return ENGRAM_OK;
	if (errno == EACCES)
		status = map_again(w, err);
	else
		status = engram_error_sys(err, errno, "mprotect %s", w->name);
	if (status) {
		segment_usual_fix(w, err);
		engram_error_context(err, "overwrite segment");
	}
	return status;
}

/* From a published name to one that the next owner removes. */
static enum engram_status take_name(struct engram_segment_writer *w,
				    const struct engram_segment_writer *next,
				    struct engram_error *err)
{
	char from[SEGMENT_PATH_MAX], to[SEGMENT_PATH_MAX];
	enum engram_status status;

	status = backing_path(from, &w->backing, w->name, err);
	if (!status)
		status = backing_path(to, &w->backing, next->temporary, err);
	if (!status && rename(from, to))
		status = engram_error_sys(err, errno, "rename %s to %s", from,
					  to);
	return status;
}

enum engram_status engram_segment_overwrite(
	struct engram_segment_writer *w, const struct engram_segment_spec *spec,
	struct engram_error *err)
{
	struct engram_segment_header *was = engram_segment_writer_header(w);
	struct engram_segment_writer next = *w;
	struct engram_segment_header h;
	enum engram_status status;

	status = segment_begin_header(spec, &h, err);
	if (status)
		return status;
	/* A mapping may end in pages larger than usual. */
	h.total_bytes = was->total_bytes;
	segment_set_names(&next, spec);
	/* First: under whatever name it is found, nobody adopts it. */
	__atomic_store_n(&was->state, ENGRAM_SEGMENT_FILLING, __ATOMIC_RELEASE);
	FAILPOINT(place_unready);
	status = take_name(w, &next, err);
	if (status) {
		__atomic_store_n(&was->state, ENGRAM_SEGMENT_READY,
				 __ATOMIC_RELEASE);
		segment_usual_fix(w, err);
		engram_error_context(err, "overwrite segment");
		return status;
	}
	*w = next;
	w->published = 0;
	w->created = 1;
	memset(w->base, 0, h.data_offset);
	FAILPOINT(place_blank);
	segment_write_header(w->base, &h, spec);
	FAILPOINT(place_taken);
	return ENGRAM_OK;
}
