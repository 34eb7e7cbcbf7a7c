/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "gather_handle.h"
#include "ring_ids.h"

/* A chunk is decoded while the next ones are still on their way. */
#define FLAGS_WANTED 32u

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const struct engram_shard *shard_of(const struct engram_gather *g,
					   uint32_t layer)
{
	return &g->table->layers[layer].shard;
}

static uint32_t slot_of(const struct engram_gather *g, uint64_t batch)
{
	return (uint32_t)(batch % g->ring.shape.slots);
}

/* ---- posting ---- */

static enum engram_status check_batch(const struct engram_gather *g,
				      uint32_t layer, int64_t num_tokens,
				      struct engram_error *err)
{
	const struct engram_table *t = g->table;
	enum engram_status status = fork_check(t->fork_generation, err);

	if (!status)
		status = table_check_parked(t, err);
	if (status)
		return status;
	if (layer >= t->num_layers)
		return engram_error_set(err, ENGRAM_EINVAL,
					"table \"%s\": layer index %" PRIu32
					", must be below %" PRIu32,
					t->name, layer, t->num_layers);
	if (num_tokens < 0)
		return engram_error_set(err, ENGRAM_EINVAL,
					"num_tokens: %" PRId64, num_tokens);
	return ENGRAM_OK;
}

/* Tokens that a batch holds. */
static int64_t batch_tokens(const struct engram_gather *g, uint32_t layer)
{
	uint32_t heads = shard_of(g, layer)->local_heads;

	return g->ring.shape.max_rows / (heads ? heads : 1);
}

/* May the slot be posted to?  One whose rows have not all come is not waited
 * for: its engramd is stopped, or overloaded. */
static bool is_free(const struct engram_gather *g, uint32_t slot)
{
	return g->whole[slot] || engram_ring_idle(&g->ring, slot, g->seq[slot]);
}

static void post(struct engram_gather *g, uint32_t layer, const int32_t *ids,
		 int64_t token_stride, int64_t head_stride, int64_t num_tokens)
{
	const struct engram_table *t = g->table;
	const struct engram_shard *shard = shard_of(g, layer);
	uint32_t slot = slot_of(g, g->num_posted);
	struct gather_batch *b = &g->batches[slot];
	const struct engram_lookup_args args = {
		.ids = ids,
		.ids_token_stride = token_stride,
		.ids_head_stride = head_stride,
		.num_tokens = num_tokens,
		.head_begin = shard->head_begin,
		.local_heads = shard->local_heads,
		.total_heads = t->layers[0].map.header->num_cols,
	};
	uint32_t rows = (uint32_t)(num_tokens * shard->local_heads);

	*b = (struct gather_batch){.layer = layer, .num_tokens = num_tokens};
	b->post = (struct engram_ring_post){
		.generation = (uint32_t)t->generation,
		.layer_id = t->layers[layer].layer_id,
		.num_rows = rows,
		.flag_rows = engram_ring_flag_rows(rows, FLAGS_WANTED),
		.seq = engram_ring_next_seq(g->seq[slot]),
	};
	/* Nobody but this thread touches the ids of a slot before it is
	 * posted: a stopped thread of engramd only reads them. */
	b->misses += ring_write_ids(engram_ring_ids(&g->ring, slot),
				    b->post.seq, &args, &t->layers[layer].rows);
	gather_sync(g, NULL);
	b->posted = rows && g->served && is_free(g, slot);
	if (b->posted) {
		engram_ring_post(&g->ring, slot, &b->post);
		g->seq[slot] = b->post.seq;
		b->deadline_ns = now_ns() + (uint64_t)g->timeout_ms * 1000000u;
		engram_gather_wake(g);
	}
	g->num_posted++;
}

enum engram_status engram_gather_post(engram_gather *gather, uint32_t layer,
				      const int32_t *ids,
				      int64_t ids_token_stride,
				      int64_t ids_head_stride,
				      int64_t num_tokens)
{
	struct engram_error *err = client_error();
	enum engram_status status = check_batch(gather, layer, num_tokens, err);

	if (status)
		return status;
	if (num_tokens > batch_tokens(gather, layer)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "num_tokens: %" PRId64 ", a batch holds "
				 "%" PRId64,
				 num_tokens, batch_tokens(gather, layer));
		engram_error_fix(err, "open the handle with more max_rows");
		return ENGRAM_EINVAL;
	}
	if (gather->num_posted - gather->num_taken == gather->ring.shape.slots)
		return engram_error_set(err, ENGRAM_EBUSY,
					"%" PRIu32 " batches are under way: "
					"take the oldest first",
					gather->ring.shape.slots);
	post(gather, layer, ids, ids_token_stride, ids_head_stride, num_tokens);
	return ENGRAM_OK;
}

/* ---- taking ---- */

/* Rows [begin, end) of the batch from the ring. */
static enum engram_status decode(const struct engram_gather *g, uint32_t slot,
				 uint32_t begin, uint32_t end, uint16_t *out,
				 struct engram_error *err)
{
	const struct gather_batch *b = &g->batches[slot];
	struct engram_rows rows = g->table->layers[b->layer].rows;

	rows.codes = engram_ring_row(&g->ring, slot, begin);
	rows.scales =
		rows.scales
			? (const char *)rows.codes +
				  rows.dim *
					  (rows.dtype == ENGRAM_BF16 ? 2u : 1u)
			: NULL;
	rows.code_stride_bytes = g->ring.row_stride;
	rows.scale_stride_bytes = rows.scales ? g->ring.row_stride : 0;
	return engram_cpu_decode(&rows, end - begin,
				 out + (size_t)begin * rows.dim, err);
}

/* The same from the table. */
static enum engram_status read_own(const struct engram_gather *g, uint32_t slot,
				   uint32_t begin, uint32_t end, uint16_t *out,
				   struct engram_error *err)
{
	const struct engram_rows *rows =
		&g->table->layers[g->batches[slot].layer].rows;
	const struct engram_lookup_args args = {
		/* the lower halves of the words */
		.ids = (const int32_t *)(engram_ring_ids(&g->ring, slot) +
					 begin),
		.ids_token_stride = 2,
		.ids_head_stride = 1,
		.num_tokens = end - begin,
		.local_heads = 1,
		.total_heads = 1,
	};

	return engram_cpu_lookup(rows, &args, out + (size_t)begin * rows->dim,
				 err);
}

static enum engram_status take(struct engram_gather *g, uint16_t *out,
			       uint64_t *misses, struct engram_error *err)
{
	uint32_t slot = slot_of(g, g->num_taken), end, n;
	const struct gather_batch *b = &g->batches[slot];
	enum engram_ring_result result = ENGRAM_RING_REFUSED;
	enum engram_status status = ENGRAM_OK;
	bool late = false, whole = true;

	/* Never rows of two generations: all of those that are current now. */
	if (b->post.generation != (uint32_t)g->table->generation)
		g->batches[slot].posted = false;
	for (uint32_t at = 0; at < b->post.num_rows && !status; at = end) {
		n = b->post.num_rows - at;
		end = at + (n < b->post.flag_rows ? n : b->post.flag_rows);
		if (b->posted)
			result = engram_ring_await(&g->ring, slot,
						   at / b->post.flag_rows,
						   b->post.seq, b->deadline_ns);
		late |= result == ENGRAM_RING_GIVEN_UP;
		whole &= result == ENGRAM_RING_ROWS;
		if (result == ENGRAM_RING_ROWS) {
			status = decode(g, slot, at, end, out, err);
			g->rows_gathered += end - at;
		} else {
			status = read_own(g, slot, at, end, out, err);
			g->rows_own += end - at;
		}
	}
	__atomic_store_n(&engram_ring_header(&g->ring)->counts.fallback,
			 g->rows_own, __ATOMIC_RELAXED);
	g->timeouts += late;
	g->whole[slot] = whole;
	if (!status && misses)
		*misses += b->misses;
	g->num_taken++;
	return status;
}

enum engram_status engram_gather_take(engram_gather *gather, uint16_t *out,
				      uint64_t *misses)
{
	struct engram_error *err = client_error();
	enum engram_status status =
		fork_check(gather->table->fork_generation, err);

	if (status)
		return status;
	if (gather->num_posted == gather->num_taken)
		return engram_error_set(err, ENGRAM_ENOTFOUND,
					"no batch is under way");
	return take(gather, out, misses, err);
}

enum engram_status engram_gather_lookup(engram_gather *gather, uint32_t layer,
					const int32_t *ids,
					int64_t ids_token_stride,
					int64_t ids_head_stride,
					int64_t num_tokens, uint16_t *out,
					uint64_t *misses)
{
	struct engram_error *err = client_error();
	enum engram_status status = check_batch(gather, layer, num_tokens, err);
	uint32_t slots = gather->ring.shape.slots;
	int64_t most, posted = 0, taken = 0, n;
	size_t token;

	if (status)
		return status;
	if (gather->num_posted != gather->num_taken)
		return engram_error_set(err, ENGRAM_EBUSY,
					"posted batches are under way: take "
					"them first");
	most = batch_tokens(gather, layer);
	if (!most)
		return engram_error_set(err, ENGRAM_EINVAL,
					"the handle's batches do not hold one "
					"token: open it with more max_rows");
	token = (size_t)shard_of(gather, layer)->local_heads *
		gather->table->layers[layer].rows.dim;
	while (taken < num_tokens && !status) {
		while (posted < num_tokens &&
		       gather->num_posted - gather->num_taken < slots) {
			n = num_tokens - posted;
			n = n < most ? n : most;
			post(gather, layer, ids + posted * ids_token_stride,
			     ids_token_stride, ids_head_stride, n);
			posted += n;
		}
		n = gather->batches[slot_of(gather, gather->num_taken)]
			    .num_tokens;
		status = take(gather, out + (size_t)taken * token, misses, err);
		taken += n;
	}
	/* After an error, what is under way is of no use to anybody. */
	gather->num_taken = gather->num_posted;
	return status;
}

enum engram_status engram_gather_info(const engram_gather *gather,
				      struct engram_gather_info *out)
{
	uint32_t slot = slot_of(gather, gather->num_posted);

	if (fork_check(gather->table->fork_generation, client_error()))
		return ENGRAM_EINVAL;
	*out = (struct engram_gather_info){
		.threads = gather->threads,
		.ring_bytes = gather->ring.bytes,
		.rows_gathered = gather->rows_gathered,
		.rows_own = gather->rows_own,
		.timeouts = gather->timeouts,
		.stalled = !engram_ring_idle(&gather->ring, slot,
					     gather->seq[slot]),
	};
	return ENGRAM_OK;
}
