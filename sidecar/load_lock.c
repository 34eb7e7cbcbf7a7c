/* SPDX-License-Identifier: Apache-2.0 */
/* Pinning: all of a generation or nothing of it. */
#include <errno.h>
#include <sys/mman.h>

#include "load.h"
#include "log.h"

/* Locked this much at a time, so that a cancellation is noticed. */
#define LOCK_BYTES (UINT64_C(1) << 30)

static enum engram_status lock_failed(const struct generation_layer *layer,
				      int sys_errno, struct engram_error *err)
{
	engram_error_sys(err, sys_errno, "mlock of layer %d",
			 (int)layer->layer_id);
	/* Only the limit makes it fail: the pages are there, or not yet. */
	err->status = ENGRAM_EMEMLOCK;
	engram_error_fix(err, "set LimitMEMLOCK=infinity in the unit "
			      "(docker: --ulimit memlock=-1)");
	return err->status;
}

static enum engram_status lock_layer(const struct generation_layer *layer,
				     struct job *job, struct engram_error *err)
{
	uint64_t offset, bytes, total = layer->header->total_bytes;
	char *base = engram_segment_writer_base(layer->writer);
	enum engram_status status;

	for (offset = 0; offset < total; offset += bytes) {
		status = load_canceled(job, err);
		if (status)
			return status;
		bytes = total - offset < LOCK_BYTES ? total - offset
						    : LOCK_BYTES;
		if (mlock(base + offset, bytes) == 0)
			continue;
		return lock_failed(layer, errno, err);
	}
	return ENGRAM_OK;
}

static void unlock_layers(struct generation *gen)
{
	uint32_t i;

	for (i = 0; i < gen->num_segments; i++)
		munlock(engram_segment_writer_base(gen->layers[i].writer),
			gen->layers[i].header->total_bytes);
}

/* The lock was not to be had: an error, or a warning. */
static enum engram_status without(struct generation *gen, enum memory_lock lock,
				  struct engram_error *err)
{
	if (lock == MEMORY_LOCK_REQUIRE)
		return err->status;
	unlock_layers(gen);
	log_failure(LOG_WARN, "memory is not locked", err);
	engram_error_clear(err);
	return ENGRAM_OK;
}

enum engram_status load_lock(struct generation *gen, enum memory_lock lock,
			     struct job *job, struct engram_error *err)
{
	enum engram_status status;
	uint32_t i;

	if (lock == MEMORY_LOCK_OFF)
		return ENGRAM_OK;
	/* Rather not at all than in part. */
	status = memory_lockable(gen->bytes, err);
	for (i = 0; !status && i < gen->num_segments; i++)
		status = lock_layer(&gen->layers[i], job, err);
	if (!status)
		gen->locked = true;
	return status && status != ENGRAM_ECANCELED ? without(gen, lock, err)
						    : status;
}

enum engram_status load_lock_ahead(struct generation *gen,
				   enum memory_lock lock, bool *later,
				   struct engram_error *err)
{
	enum engram_status status;
	uint32_t i;

	*later = false;
	if (lock == MEMORY_LOCK_OFF)
		return ENGRAM_OK;
	status = memory_lockable(gen->bytes, err);
	for (i = 0; !status && i < gen->num_segments; i++) {
		const struct generation_layer *layer = &gen->layers[i];

		if (!mlock2(engram_segment_writer_base(layer->writer),
			    layer->header->total_bytes, MLOCK_ONFAULT))
			continue;
		if (errno == ENOSYS || errno == EINVAL) {
			unlock_layers(gen);
			*later = true;
			return ENGRAM_OK;
		}
		status = lock_failed(layer, errno, err);
	}
	if (status)
		return without(gen, lock, err);
	gen->locked = true;
	return ENGRAM_OK;
}
