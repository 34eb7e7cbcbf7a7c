/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a batch has to be fetched, and the fetching (engram_cuda_sieve.h).
 * Rows are told apart by a hash table that needs no clearing: a word of it
 * holds the number of the batch.  The number of a row that was seen before is
 * looked up by a later launch, when whoever saw it first has written it: on the
 * host path that is while engramd gathers.
 */
#include "engram_cuda_sieve.h"
#include "engram_sieve_math.h"
#include "ring.cuh"

#define SIEVE_BLOCKS 32
#define FETCH_BLOCKS 8
#define FILL_BLOCKS  32
#define WAYS	     ENGRAM_SIEVE_WAYS
#define FORGET_EVERY 256 /* batches: what was seen long ago */

struct sieve_task {
	struct ring_task t;
	struct engram_cuda_sieve sieve;
	uint32_t layer, own_ppt, flags;
};

static __device__ __forceinline__ void add_of_warp(uint64_t *counter,
						   uint32_t count)
{
	count_misses(counter, count);
}

/* ---- finding out ---- */

static __device__ __forceinline__ int32_t
find_entry(const struct engram_cuda_sieve &s, uint64_t key, uint32_t hash,
	   uint32_t now)
{
	uint32_t first = engram_sieve_set(hash, s.sets) * WAYS;
	const ulonglong2 *tags = (const ulonglong2 *)(s.tags + first);
	int way = -1;

#pragma unroll
	for (int i = 0; i < (int)WAYS / 2; i++) {
		ulonglong2 pair = __ldcg(tags + i);

		way = pair.x == key ? 2 * i : pair.y == key ? 2 * i + 1 : way;
	}
	if (way < 0)
		return -1;
	/* hits at the same moment may count as one */
	s.uses[first + way] = engram_sieve_hit(s.uses[first + way], now);
	return (int32_t)(first + way);
}

/* The word of a row, or -1 if there is no room for it.  *fresh: it was not seen
 * before. */
static __device__ __forceinline__ int32_t see(const struct engram_cuda_sieve &s,
					      uint32_t hash, int32_t id,
					      uint32_t now, int *fresh)
{
	unsigned long long word = ENGRAM_RING_WORD(now, id), old, was;

	for (uint32_t i = 0; i < ENGRAM_SIEVE_PROBES; i++) {
		uint32_t at = (hash + i) & s.seen_mask;
		unsigned long long *seen = (unsigned long long *)&s.seen[at];

		old = *(volatile unsigned long long *)seen;
		if (old >> 32 != now) {
			was = atomicCAS(seen, old, word);
			*fresh = was == old;
			if (*fresh)
				return (int32_t)at;
			old = was;
		}
		if (old == word)
			return (int32_t)at;
	}
	*fresh = 1;
	return -1;
}

/* Numbers in turn for those of a warp that want one. */
static __device__ __forceinline__ uint32_t take_number(uint32_t *next,
						       int wanted)
{
	uint32_t lane = threadIdx.x % WARP, first = 0;
	uint32_t all = __ballot_sync(~0u, wanted);

	if (lane == 0 && all)
		first = atomicAdd(next, (uint32_t)__popc(all));
	first = __shfl_sync(~0u, first, 0);
	return first + (uint32_t)__popc(all & ((1u << lane) - 1));
}

struct found {
	uint32_t hits, repeats, misses;
};

/* One row of the batch, or none; by whole warps.  Where it will be: a record;
 * -1: nowhere; below: -2 - the word of what was seen. */
static __device__ __forceinline__ void sieve_row(const struct sieve_task &k,
						 const struct engram_rows &rows,
						 uint32_t seq, uint32_t now,
						 int64_t at, struct found *f)
{
	const struct engram_cuda_sieve &s = k.sieve;
	struct wanted w = fetch_id(k.t.lookup, at);
	int here = w.real && engram_row_is_here(&rows, w.id), fresh = 0;
	uint64_t epoch = k.t.lookup.descriptor->epoch;
	uint32_t hash = engram_sieve_hash(k.layer, w.id), number;
	int32_t where = -1, word = -1;

	f->misses += w.real && !here;
	if (here && s.sets)
		where = find_entry(s, engram_sieve_key(epoch, k.layer, w.id),
				   hash, now);
	f->hits += where >= 0;
	if (here && where < 0) {
		word = see(s, hash, w.id, now, &fresh);
		where = -2 - word;
		f->repeats += !fresh;
	}
	number = take_number(&s.state->next, fresh);
	if (fresh) {
		s.wanted[number] = w.id;
		if (word >= 0)
			s.seen_number[word] = number;
		where = (int32_t)(s.sets * WAYS + number);
		if (k.t.ring.slot)
			store_word(&k.t.ring.ids[number], seq, (uint32_t)w.id);
	}
	if (at < k.t.lookup.num_rows)
		s.where[at] = where;
}

/* A part of the table, now and then: numbers of batches come round. */
static __device__ void forget(const struct engram_cuda_sieve &s, uint32_t now)
{
	uint32_t at =
		(now / FORGET_EVERY * THREADS + threadIdx.x) & s.seen_mask;

	if (now % FORGET_EVERY == 0 && s.seen[at] >> 32 != now)
		s.seen[at] = 0;
}

static __device__ void tell_found(const struct engram_cuda_sieve &s)
{
	const volatile struct engram_cuda_sieve_counts *from = &s.state->counts;
	volatile struct engram_ring_counts *to = s.told;

	if (!to)
		return;
	to->cache_lookups = from->rows;
	to->cache_hits = from->hits;
	to->repeats = from->repeats;
	to->cache_fills = from->fills;
}

/* By the last block: flags of this batch, then the post. */
static __device__ void post_found(const struct sieve_task &k, uint32_t seq,
				  uint32_t posted, uint32_t flag_rows)
{
	struct engram_cuda_ring_state *r = k.t.ring.state;
	__shared__ int idle;
	uint32_t result;

	if (threadIdx.x == 0)
		idle = !r->unsettled || await_idle(k.t);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < k.flags; i += THREADS) {
		/* there are no rows in it: nobody is to wait */
		result = i * flag_rows >= posted ? ENGRAM_RING_ROWS
			 : idle			 ? ENGRAM_RING_PENDING
						 : ENGRAM_RING_GIVEN_UP;
		store(&k.t.ring.slot->flags[i].value, seq << 2 | result);
	}
	__threadfence_system();
	__syncthreads();
	if (idle && posted && threadIdx.x < ENGRAM_RING_POST_WORDS)
		write_post_of(k.t, k.t.ring.slot, seq, threadIdx.x, posted,
			      flag_rows);
	if (threadIdx.x)
		return;
	r->seq = seq;
	r->unsettled = !idle;
	if (!idle || !posted)
		return;
	r->posted = seq;
	k.t.ring.counters->posted++;
}

static __global__ void __launch_bounds__(THREADS, 1)
	sieve_kernel(const __grid_constant__ struct sieve_task k)
{
	struct engram_cuda_sieve_state *s = k.sieve.state;
	struct engram_rows rows = rows_now(k.t.lookup);
	int64_t end = (k.t.lookup.num_rows + WARP - 1) / WARP * WARP;
	uint32_t now = s->now + 1, seq = 0, posted = 0, fetched, flag_rows;
	struct found f = {0, 0, 0};
	__shared__ int last;

	if (k.t.ring.slot)
		seq = next_seq(k.t);
	for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < end;
	     at += (int64_t)gridDim.x * THREADS)
		sieve_row(k, rows, seq, now, at, &f);
	count_misses(k.t.lookup.args.misses, f.misses);
	add_of_warp(&s->counts.hits, f.hits);
	add_of_warp(&s->counts.repeats, f.repeats);
	__threadfence();
	__syncthreads();
	/* every block has read the numbers by now */
	if (threadIdx.x == 0)
		last = atomicAdd(&s->left, 1) == gridDim.x - 1;
	__syncthreads();
	if (!last)
		return;
	__threadfence();
	fetched = *(volatile uint32_t *)&s->next;
	if (k.t.ring.slot)
		posted = engram_sieve_posted(fetched, k.own_ppt);
	flag_rows = engram_sieve_flag_rows(posted, k.flags);
	if (k.t.ring.slot)
		post_found(k, seq, posted, flag_rows);
	forget(k.sieve, now);
	__syncthreads();
	if (threadIdx.x)
		return;
	s->counts.rows += (uint64_t)k.t.lookup.num_rows;
	s->now = now;
	s->fetched = fetched;
	s->posted = posted;
	s->flag_rows = flag_rows;
	s->next = s->left = 0;
	tell_found(k.sieve);
}

/* ---- fetching ---- */

/* The record of what is fetched as number `at`. */
static __device__ __forceinline__ uint8_t *record_of(
	const struct engram_cuda_sieve &s, uint32_t at)
{
	return s.records + ((size_t)s.sets * WAYS + at) * s.record_stride;
}

static __device__ void resolve(const struct sieve_task &k)
{
	const struct engram_cuda_sieve &s = k.sieve;
	int32_t first = (int32_t)(s.sets * WAYS);

#pragma unroll 4
	for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	     at < k.t.lookup.num_rows; at += (int64_t)gridDim.x * THREADS) {
		int32_t where = s.where[at];

		if (where < -1)
			s.where[at] =
				first + (int32_t)s.seen_number[-2 - where];
	}
}

/* A multiple of 8 bytes, from and to multiples of 16; not one more, since
 * another launch may be writing what follows. */
static __device__ void copy_records(uint8_t *to, const uint8_t *from,
				    size_t bytes, size_t thread, size_t threads)
{
	const uint4 *source = (const uint4 *)from;
	uint4 *target = (uint4 *)to;
	size_t count = bytes / 16;

	if (thread == 0 && bytes % 16)
		((uint2 *)to)[bytes / 8 - 1] =
			__ldcg((const uint2 *)from + (bytes / 8 - 1));

	for (size_t at = thread; at < count; at += DEPTH * threads) {
		uint4 some[DEPTH];

#pragma unroll
		for (int i = 0; i < DEPTH; i++)
			if (at + i * threads < count)
				some[i] = __ldcg(source + at + i * threads);
#pragma unroll
		for (int i = 0; i < DEPTH; i++)
			if (at + i * threads < count)
				target[at + i * threads] = some[i];
	}
}

/* A tile of DEPTH rows of 256 fp8 codes and 8 scales from the table. */
static __device__ __forceinline__ void fetch_256(
	const struct engram_cuda_sieve &s, const struct engram_rows &rows,
	uint32_t first, uint32_t count, int64_t index, uint32_t lane)
{
	const uint8_t *codes = (const uint8_t *)rows.codes;
	uint2 unit[DEPTH], scales = make_uint2(0, 0);

#pragma unroll
	for (int i = 0; i < DEPTH; i++) {
		int64_t stored = __shfl_sync(~0u, index, i);

		unit[i] = make_uint2(0, 0);
		if (stored >= 0)
			unit[i] = load_unit<ENGRAM_UNIT_BYTES>(
				codes + stored * rows.code_stride_bytes +
				lane * ENGRAM_UNIT_BYTES);
	}
	if (index >= 0)
		scales = load_unit<ENGRAM_UNIT_BYTES>(
			(const uint8_t *)rows.scales +
			index * rows.scale_stride_bytes);
#pragma unroll
	for (int i = 0; i < DEPTH; i++)
		if (i < count)
			((uint2 *)record_of(s, first + i))[lane] = unit[i];
	if (lane < count)
		((uint2 *)record_of(s, first + lane))[WARP] = scales;
}

/* Rows of any kind, byte by byte. */
static __device__ void fetch_bytes(const struct engram_cuda_sieve &s,
				   const struct engram_rows &rows,
				   uint32_t first, uint32_t count,
				   int64_t index, uint32_t lane)
{
	uint32_t codes = rows.dim * (rows.dtype == ENGRAM_BF16 ? 2 : 1);
	uint32_t scales = rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK
				  ? engram_row_scales(&rows)
				  : 0;

	for (uint32_t i = 0; i < count; i++) {
		int64_t stored = __shfl_sync(~0u, index, i);
		const uint8_t *code = (const uint8_t *)rows.codes +
				      stored * rows.code_stride_bytes;
		const uint8_t *scale = (const uint8_t *)rows.scales +
				       stored * rows.scale_stride_bytes;
		uint8_t *to = record_of(s, first + i);

		for (uint32_t at = lane; at < codes; at += WARP)
			to[at] = stored < 0 ? 0 : code[at];
		for (uint32_t at = lane; at < scales; at += WARP)
			to[codes + at] = stored < 0 ? 0 : scale[at];
	}
}

/* From the table; without one, zeros, which no cache takes. */
template <bool OF_256>
static __device__ void fetch_rows(const struct sieve_task &k,
				  const struct engram_rows &rows,
				  uint32_t begin, uint32_t end)
{
	uint32_t lane = threadIdx.x % WARP;
	uint32_t first =
		begin + (blockIdx.x * WARPS + threadIdx.x / WARP) * DEPTH;

	for (; first < end; first += gridDim.x * WARPS * DEPTH) {
		uint32_t count = end - first < DEPTH ? end - first : DEPTH;
		int64_t index = -1;

		if (lane < count && rows.codes)
			index = k.sieve.wanted[first + lane] - rows.row_begin;
		if (lane < count && !rows.codes)
			k.sieve.wanted[first + lane] = -1;
		if (OF_256)
			fetch_256(k.sieve, rows, first, count, index, lane);
		else
			fetch_bytes(k.sieve, rows, first, count, index, lane);
	}
}

/* A chunk that engramd did not deliver, from the rescue slot: has it come?  By
 * one block. */
static __device__ int fetch_rescued(const struct sieve_task &k, uint32_t seq,
				    uint32_t chunk, uint32_t begin,
				    uint32_t end)
{
	const struct engram_cuda_sieve &s = k.sieve;
	uint32_t stride = s.record_stride;
	__shared__ int here;

	if (threadIdx.x < ENGRAM_RING_POST_WORDS)
		write_post_of(k.t, k.t.ring.rescue, seq, threadIdx.x,
			      s.state->posted, s.state->flag_rows);
	for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS)
		store_word(&k.t.ring.rescue_ids[i], seq, (uint32_t)s.wanted[i]);
	if (threadIdx.x == 0)
		here = await_rescue(k.t, seq, chunk);
	__syncthreads();
	if (here)
		copy_records(record_of(s, begin),
			     k.t.ring.rescue_rows + (size_t)begin * stride,
			     (size_t)(end - begin) * stride, threadIdx.x,
			     THREADS);
	return here;
}

/* A chunk that engramd did not deliver. */
template <bool OF_256>
static __device__ void fetch_missing(const struct sieve_task &k,
				     const struct engram_rows &rows,
				     uint32_t seq, uint32_t value,
				     uint32_t chunk, uint32_t begin,
				     uint32_t end)
{
	struct engram_cuda_ring_counters *c = k.t.ring.counters;
	int rescue = !rows.codes && k.t.ring.rescue, here = rows.codes != NULL;

	if (rescue && blockIdx.x)
		return;
	if (rescue)
		here = fetch_rescued(k, seq, chunk, begin, end);
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (value != (seq << 2 | (uint32_t)ENGRAM_RING_REFUSED))
			k.t.ring.state->unsettled = 1;
		count_rows(here ? &c->fallback : &c->failed, end - begin);
		__threadfence();
		tell_counts(k.t);
	}
	if (rescue && here)
		return;
	if (!rescue) {
		fetch_rows<OF_256>(k, rows, begin, end);
		return;
	}
	/* one block alone */
	for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS) {
		k.sieve.wanted[i] = -1;
		for (uint32_t b = 0; b < k.sieve.record_stride; b++)
			record_of(k.sieve, i)[b] = 0;
	}
}

template <bool OF_256>
static __global__ void __launch_bounds__(THREADS, 1)
	fetch_kernel(const __grid_constant__ struct sieve_task k, int chunk)
{
	const struct engram_cuda_sieve_state *s = k.sieve.state;
	struct engram_rows rows = rows_now(k.t.lookup);
	uint32_t begin = s->posted, end = s->fetched, seq;
	__shared__ uint32_t value;

	if (chunk == ENGRAM_SIEVE_OWN) {
		resolve(k);
		fetch_rows<OF_256>(k, rows, begin, end);
		return;
	}
	begin = (uint32_t)chunk * s->flag_rows;
	end = s->posted - begin < s->flag_rows ? s->posted
					       : begin + s->flag_rows;
	if (begin >= s->posted)
		return;
	seq = k.t.ring.state->seq;
	if (threadIdx.x == 0)
		value = load_acquire(&k.t.ring.slot->flags[chunk].value);
	__syncthreads();
	if (value == (seq << 2 | (uint32_t)ENGRAM_RING_ROWS))
		copy_records(record_of(k.sieve, begin),
			     k.t.ring.rows +
				     (size_t)begin * k.sieve.record_stride,
			     (size_t)(end - begin) * k.sieve.record_stride,
			     (size_t)blockIdx.x * THREADS + threadIdx.x,
			     (size_t)gridDim.x * THREADS);
	else
		fetch_missing<OF_256>(k, rows, seq, value, (uint32_t)chunk,
				      begin, end);
}

/* ---- filling the cache ---- */

/* An entry for a row that was fetched; -1: it is there, or the others are worth
 * more, one of them a little less from now on; -2: another row was faster. */
static __device__ __forceinline__ int32_t
try_to_admit(const struct engram_cuda_sieve &s, uint64_t key, uint32_t hash,
	     uint32_t now)
{
	uint32_t first = engram_sieve_set(hash, s.sets) * WAYS, at = first;
	uint32_t least = 0x100, worth, use = 0;

	for (uint32_t way = 0; way < WAYS; way++) {
		uint64_t tag = __ldcg(&s.tags[first + way]);
		uint32_t is = *(volatile uint32_t *)&s.uses[first + way];

		if (tag == key)
			return -1;
		worth = engram_sieve_worth(tag, is, key, now);
		if (worth >= least)
			continue;
		least = worth;
		at = first + way;
		use = is;
	}
	if (least > ENGRAM_SIEVE_HITS_MAX)
		return -1;
	if (least) {
		atomicCAS(&s.uses[at], use, use - 1);
		return -1;
	}
	/* in use from now on, so that no other row of the batch takes it */
	if (atomicCAS(&s.uses[at], use, engram_sieve_use(now, 0)) != use)
		return -2;
	s.tags[at] = key;
	return (int32_t)at;
}

/* Each time that another row is faster there is one entry less to have. */
static __device__ __forceinline__ int32_t
admit(const struct engram_cuda_sieve &s, uint64_t key, uint32_t hash,
      uint32_t now)
{
	int32_t at = -2;

	for (uint32_t i = 0; i < WAYS && at == -2; i++)
		at = try_to_admit(s, key, hash, now);
	return at;
}

struct fill {
	uint32_t from;
	int32_t to;
};

static __global__ void __launch_bounds__(THREADS, 1)
	fill_kernel(const __grid_constant__ struct sieve_task k)
{
	const struct engram_cuda_sieve &s = k.sieve;
	__shared__ struct fill fills[WARPS][WARP];
	struct fill *mine = fills[threadIdx.x / WARP];
	uint32_t lane = threadIdx.x % WARP, units = s.record_stride / 8;
	uint32_t fetched = s.state->fetched, now = s.state->now;
	uint64_t epoch = k.t.lookup.descriptor->epoch;
	uint32_t first = (blockIdx.x * WARPS + threadIdx.x / WARP) * WARP;
	uint32_t filled = 0;

	for (; first < fetched; first += gridDim.x * THREADS) {
		uint32_t at = first + lane, all, count;
		int32_t id = at < fetched ? s.wanted[at] : -1, to = -1;

		if (id >= 0)
			to = admit(s, engram_sieve_key(epoch, k.layer, id),
				   engram_sieve_hash(k.layer, id), now);
		all = __ballot_sync(~0u, to >= 0);
		count = (uint32_t)__popc(all);
		if (to >= 0)
			mine[__popc(all & ((1u << lane) - 1))] = {at, to};
		filled += to >= 0;
		__syncwarp();
#pragma unroll 4
		for (uint32_t i = lane; i < count * units; i += WARP) {
			const struct fill f = mine[i / units];

			((uint2 *)(s.records +
				   (size_t)f.to * s.record_stride))[i % units] =
				((const uint2 *)record_of(s,
							  f.from))[i % units];
		}
		__syncwarp();
	}
	add_of_warp(&s.state->counts.fills, filled);
}

/* ---- the interface ---- */

static enum engram_status make_task(const struct engram_cuda_sieve *sieve,
				    const struct engram_cuda_ring *ring,
				    const struct engram_cuda_sieve_batch *b,
				    struct sieve_task *k,
				    struct engram_error *err)
{
	const struct engram_cuda_ring_batch *batch = &b->batch;
	const uint16_t *out =
		batch->out ? batch->out : (const uint16_t *)batch->raw.codes;
	enum engram_status status =
		lookup_check(batch->source, batch->args, out, err);

	if (status)
		return status;
	k->t.lookup = lookup_task_of(batch->source, batch->args);
	if (ring)
		k->t.ring = *ring;
	k->t.layer_id = batch->layer_id;
	k->sieve = *sieve;
	k->layer = b->layer;
	k->own_ppt = b->own_ppt;
	k->flags = b->flags;
	if (k->t.lookup.num_rows <= sieve->max_rows && b->flags &&
	    b->flags <= ENGRAM_RING_FLAGS && b->own_ppt <= 1000)
		return ENGRAM_OK;
	return engram_invalid(err, "batch", "too many rows or chunks",
			      "pass fewer at once");
}

static unsigned int blocks_for(int64_t items, int64_t each, int64_t most)
{
	int64_t blocks = (items + each - 1) / each;

	return (unsigned int)(blocks < most ? blocks : most);
}

enum engram_status engram_cuda_sieve(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct sieve_task k = {};
	enum engram_status status = make_task(sieve, ring, batch, &k, err);

	if (status || !k.t.lookup.num_rows)
		return status;
	sieve_kernel<<<blocks_for(k.t.lookup.num_rows, THREADS, SIEVE_BLOCKS),
		       THREADS, 0, stream>>>(k);
	return engram_cuda_launched("sieve kernel", err);
}

enum engram_status engram_cuda_sieve_fetch(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, int chunk,
	engram_stream stream, struct engram_error *err)
{
	struct sieve_task k = {};
	enum engram_status status = make_task(sieve, ring, batch, &k, err);
	unsigned int blocks;

	if (status || !k.t.lookup.num_rows)
		return status;
	blocks = blocks_for(k.t.lookup.num_rows, WARPS * DEPTH, FETCH_BLOCKS);
	if (table_is_256(&k.t.lookup))
		fetch_kernel<true><<<blocks, THREADS, 0, stream>>>(k, chunk);
	else
		fetch_kernel<false><<<blocks, THREADS, 0, stream>>>(k, chunk);
	return engram_cuda_launched("sieve fetch kernel", err);
}

enum engram_status engram_cuda_sieve_decode(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_sieve_batch *b, engram_stream stream,
	struct engram_error *err)
{
	const struct engram_cuda_ring_batch *batch = &b->batch;
	const uint32_t heads = batch->args->local_heads;
	struct sieve_task k = {};
	enum engram_status status;
	struct lookup_task *task = &k.t.lookup;
	struct engram_rows *rows = &task->rows;

	status = make_task(sieve, NULL, b, &k, err);
	if (!status && !batch->out)
		status = engram_check_layout(&batch->raw, err);
	if (status)
		return status;
	task->out = batch->out;
	task->raw = batch->raw;
	rows->codes = sieve->records;
	rows->code_stride_bytes = sieve->record_stride;
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK) {
		rows->scales = sieve->records +
			       rows->dim * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
		rows->scale_stride_bytes = sieve->record_stride;
	}
	rows->row_begin = 0;
	rows->row_end = (int64_t)sieve->sets * WAYS + sieve->max_rows;
	task->scaled_by = task->descriptor;
	task->descriptor = NULL;
	task->args.ids = sieve->where;
	task->args.ids_token_stride = heads;
	task->args.ids_head_stride = 1;
	task->args.head_begin = 0;
	task->args.total_heads = heads;
	task->args.misses = NULL;
	return lookup_resident(task, stream, err);
}

enum engram_status engram_cuda_sieve_fill(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct sieve_task k = {};
	enum engram_status status = make_task(sieve, NULL, batch, &k, err);

	if (status || !k.t.lookup.num_rows || !sieve->sets)
		return status;
	fill_kernel<<<blocks_for(k.t.lookup.num_rows, THREADS, FILL_BLOCKS),
		      THREADS, 0, stream>>>(k);
	return engram_cuda_launched("sieve fill kernel", err);
}
