/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that the host posts itself, in slots of their own, whose sequence
 * numbers it counts: the lookup that takes one waits for that number.
 */
#include <inttypes.h>

#include "check.h"
#include "device.h"
#include "gather_handle.h"
#include "launch.h"
#include "ring_ids.h"

static struct cuda_prefetched *batch_of(struct engram_cuda_gather *g,
					uint64_t n, uint32_t *slot)
{
	*slot = g->slots + (uint32_t)(n % g->num_prefetched);
	return &g->prefetched[n % g->num_prefetched];
}

/* Has engramd answered all of the slot's last post, or let go of it? */
static int is_settled(const struct engram_cuda_gather *g, uint32_t slot,
		      const struct cuda_prefetched *b)
{
	struct engram_ring_post post;

	if (engram_ring_idle(g->ring, slot, b->posted_seq))
		return 1;
	/* the flags are those of a batch that was not posted */
	if (b->posted_seq != b->seq ||
	    engram_ring_read_post(g->ring, slot, &post) != ENGRAM_RING_SOUND)
		return 0;
	for (uint32_t i = 0; i < engram_ring_flags(&post); i++) {
		enum engram_ring_result result =
			engram_ring_look(g->ring, slot, i, b->seq);

		if (result != ENGRAM_RING_ROWS && result != ENGRAM_RING_REFUSED)
			return 0;
	}
	return 1;
}

/* Is the slot free: the batch before in it taken, and read by the stream? */
static enum engram_status check_free(struct engram_cuda_gather *g,
				     const struct cuda_prefetched *b,
				     struct engram_error *err)
{
	enum engram_status status;
	struct cuda_scope scope;
	cudaError_t error;

	if (g->num_posted - g->num_taken == g->num_prefetched) {
		engram_error_set(err, ENGRAM_EBUSY,
				 "%" PRIu32 " batches are posted",
				 g->num_prefetched);
		engram_error_fix(err, "take the oldest first, or open the "
				      "handle with more prefetch_slots");
		return ENGRAM_EBUSY;
	}
	if (!b->over)
		return ENGRAM_OK;
	status = cuda_enter(&scope, g->table->device, err);
	if (status)
		return status;
	error = cudaEventQuery(b->over);
	if (error == cudaErrorNotReady) {
		engram_cuda_ignore(error);
		engram_error_set(err, ENGRAM_EBUSY,
				 "the batch that was taken last from this slot "
				 "is still being read");
		status = err->status;
	} else {
		status = engram_cuda_status(error, "cudaEventQuery", err);
	}
	cuda_leave(&scope);
	return status;
}

static void set_flags(const struct engram_cuda_gather *g, uint32_t slot,
		      uint32_t seq, enum engram_ring_result result)
{
	for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
		__atomic_store_n(
			&engram_ring_slot(g->ring, slot)->flags[i].value,
			engram_ring_flag_of(seq, result), __ATOMIC_RELEASE);
}

static enum engram_status post(struct engram_cuda_gather *g, uint32_t layer,
			       const struct engram_lookup_args *args,
			       struct cuda_prefetched *b, uint32_t slot,
			       uint64_t *misses, struct engram_error *err)
{
	const engram_table *table = g->table->table;
	int64_t rows = args->num_tokens * args->local_heads;
	struct engram_table_info info;
	struct engram_layer_info l;
	struct engram_ring_post what;
	int settled = is_settled(g, slot, b);

	if (engram_table_info(table, &info) ||
	    engram_layer_info(table, layer, &l)) {
		*err = *engram_last_error();
		return err->status;
	}
	b->layer = layer;
	b->num_tokens = args->num_tokens;
	b->flag_rows = cuda_gather_flag_rows(
		rows, cuda_gather_is_small(&g->table->sources[layer], rows));
	b->generation = info.generation;
	b->seq = engram_ring_next_seq(b->seq);
	what = (struct engram_ring_post){
		.generation = (uint32_t)info.generation,
		.layer_id = l.layer_id,
		.num_rows = (uint32_t)rows,
		.flag_rows = b->flag_rows,
		.seq = b->seq,
	};
	if (!rows)
		return ENGRAM_OK;
	/* An unsettled slot gets the ids alone, for a lookup without engramd.
	 * A stream waits for the low bits of a flag. */
	set_flags(g, slot, b->seq,
		  settled ? ENGRAM_RING_PENDING : ENGRAM_RING_GIVEN_UP);
	*misses += ring_write_ids(engram_ring_ids(g->ring, slot), b->seq, args,
				  &l.rows);
	if (settled) {
		engram_ring_post(g->ring, slot, &what);
		b->posted_seq = b->seq;
	}
	return ENGRAM_OK;
}

static enum engram_status prefetch(struct engram_cuda_gather *g, uint32_t layer,
				   const struct engram_lookup_args *args,
				   uint64_t *misses, struct engram_error *err)
{
	struct cuda_prefetched *b;
	enum engram_status status;
	uint32_t slot;

	if (!g->num_prefetched)
		return engram_invalid(err, "gather", "no slots to prefetch to",
				      "open it with prefetch_slots");
	if (args->num_tokens < 0 ||
	    args->num_tokens * args->local_heads > g->ring->shape.max_rows)
		return engram_invalid(err, "num_tokens",
				      "below 0, or more than a batch holds",
				      "open the handle with more max_rows");
	b = batch_of(g, g->num_posted, &slot);
	status = check_free(g, b, err);
	if (!status)
		status = post(g, layer, args, b, slot, misses, err);
	if (!status)
		g->num_posted++;
	return status;
}

enum engram_status engram_cuda_gather_prefetch(
	engram_cuda_gather *gather, uint32_t layer, const int32_t *ids,
	int64_t ids_token_stride, int64_t ids_head_stride, int64_t num_tokens,
	uint64_t *misses)
{
	const struct engram_cuda_lookup_params params = {
		.ids = ids,
		.ids_token_stride = ids_token_stride,
		.ids_head_stride = ids_head_stride,
		.num_tokens = num_tokens,
	};
	struct engram_lookup_args args;
	struct engram_error err;
	enum engram_status status =
		cuda_begin_lookup(gather->table, layer, &params, &args);
	uint64_t ignored = 0;

	if (status)
		return status;
	engram_gather_sync(gather->host);
	status = prefetch(gather, layer, &args, misses ? misses : &ignored,
			  &err);
	engram_gather_wake(gather->host);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

/* ---- taking ---- */

static enum engram_status fetch(struct engram_cuda_gather *g, uint32_t slot,
				const struct cuda_prefetched *b, uint16_t *out,
				engram_stream stream, struct engram_error *err)
{
	const struct engram_cuda_table *t = g->table;
	const struct engram_cuda_source *source = &t->sources[b->layer];
	const struct engram_cuda_ring ring = cuda_gather_slot(g, slot);
	uint32_t heads = t->layers[b->layer].shard.local_heads;
	/* what was posted, the lower halves of words */
	const struct engram_lookup_args args = {
		.ids = (const int32_t *)ring.ids,
		.ids_token_stride = 2 * (int64_t)heads,
		.ids_head_stride = 2,
		.num_tokens = b->num_tokens,
		.local_heads = heads,
		.total_heads = heads,
	};
	const struct engram_cuda_ring_batch batch = {
		.source = source,
		.args = &args,
		.layer_id = t->layers[b->layer].layer_id,
		.flag_rows = b->flag_rows,
		.timeout_ns = g->timeout_ns,
		.posted_seq = b->seq,
		.out = out,
	};

	if (!b->num_tokens || !heads)
		return ENGRAM_OK;
	if (cuda_gather_is_small(source, b->num_tokens * heads))
		return engram_cuda_ring_lookup(&ring, &batch, stream, err);
	return cuda_gather_fetch_large(g, &ring, &batch, stream, err);
}

static enum engram_status take(struct engram_cuda_gather *g, uint16_t *out,
			       int64_t *num_tokens, engram_stream stream,
			       struct engram_error *err)
{
	struct engram_table_info info;
	struct cuda_prefetched *b;
	enum engram_status status;
	uint32_t slot;

	/* also of the fork */
	if (engram_table_info(g->table->table, &info)) {
		*err = *engram_last_error();
		return err->status;
	}
	if (g->num_posted == g->num_taken)
		return engram_error_set(err, ENGRAM_ENOTFOUND,
					"no batch is posted");
	status = cuda_check_not_capturing(stream,
					  "a batch is taken once: use "
					  "engram_cuda_gather_lookup",
					  err);
	if (status)
		return status;
	b = batch_of(g, g->num_taken, &slot);
	/* Never rows of two generations: all of those that are current now. */
	if (b->generation != info.generation)
		set_flags(g, slot, b->seq, ENGRAM_RING_GIVEN_UP);
	if (!b->over)
		status = engram_cuda_status(
			cudaEventCreateWithFlags(&b->over,
						 cudaEventDisableTiming),
			"cudaEventCreateWithFlags", err);
	if (!status)
		status = fetch(g, slot, b, out, stream, err);
	if (!status)
		status = engram_cuda_status(cudaEventRecord(b->over, stream),
					    "cudaEventRecord", err);
	if (status)
		return status;
	if (num_tokens)
		*num_tokens = b->num_tokens;
	g->num_taken++;
	return ENGRAM_OK;
}

enum engram_status engram_cuda_gather_take(engram_cuda_gather *gather,
					   uint16_t *out, int64_t *num_tokens,
					   engram_stream stream)
{
	struct engram_error err;

	if (take(gather, out, num_tokens, stream, &err))
		return engram_set_last_error(&err);
	return ENGRAM_OK;
}

void cuda_gather_prefetch_close(struct engram_cuda_gather *g)
{
	for (uint32_t i = 0; i < ENGRAM_RING_SLOTS; i++)
		if (g->prefetched[i].over)
			engram_cuda_ignore(
				cudaEventDestroy(g->prefetched[i].over));
}
