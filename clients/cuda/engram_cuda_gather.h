/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups whose rows engramd's threads gather: several times as many a second
 * as a GPU reads over UVA, and with next to nothing taken from what runs
 * beside.
 *
 *	engram_cuda_gather *g;
 *
 *	engram_cuda_attach(client, &attach, NULL, &table);
 *	engram_cuda_gather_open(table, NULL, &g);
 *	engram_cuda_gather_lookup(g, 0, &params, ENGRAM_PATH_AUTO, rows,
 *				  stream);
 *	...
 *	cudaStreamSynchronize(stream);
 *	engram_cuda_gather_close(g);
 *	engram_cuda_detach(table);
 *
 * Bits, pointers and capture are those of engram_cuda_table_lookup: no call
 * allocates, waits, or calls back into the host.  What engramd does not deliver
 * in time is read over UVA by the same launch; where the table is not
 * registered (ENGRAM_CUDA_HOST), a thread of this library copies it from this
 * process's mapping, slowly.
 *
 * Threads: a handle is for one stream at a time.  Two streams that look up at
 * once need a handle each.
 */
#ifndef ENGRAM_CUDA_GATHER_H
#define ENGRAM_CUDA_GATHER_H

#include "engram_cuda.h"

#pragma GCC visibility push(default) /* libengram_cuda exports these */
#ifdef __cplusplus
extern "C" {
#endif

typedef struct engram_cuda_gather engram_cuda_gather;

enum engram_cuda_path {
	ENGRAM_PATH_AUTO = 0, /* by batch size, as measured at open */
	ENGRAM_PATH_UVA = 1,  /* engram_cuda_table_lookup */
	ENGRAM_PATH_HOST = 2, /* gathered by engramd */
	/* both at once, in the proportion that was measured to be fastest;
	 * where the table is not registered, or nothing was measured, HOST */
	ENGRAM_PATH_HYBRID = 3
};

struct engram_cuda_gather_params {
	uint32_t slots;	   /* batches in the ring; 0: 2 */
	uint32_t max_rows; /* of a batch; more are several; 0: 196608 */
	int timeout_ms;	   /* for a batch; 0: 20 */
	int no_measuring;  /* AUTO and HYBRID are HOST then */
	/* more slots, for engram_cuda_gather_prefetch; 8 in all */
	uint32_t prefetch_slots;
	/*
	 * Bytes of device memory for a cache of rows, which large batches look
	 * into first, whatever their path, and from which they come; of this
	 * handle alone; 0: none.  Rows that come again and again stay, whatever
	 * passes by, and none outlives a change of generation.  Worth it where
	 * ids are skewed, as those of text are.  ENGRAM_EINVAL with
	 * ENGRAM_CUDA_DEVICE.
	 */
	uint64_t cache_bytes;
	/* Non-zero: of large batches of HOST and HYBRID, rows that are in the
	 * batch more than once are gathered once.  Worth it where more than a
	 * third of them are.  With a cache it is always so. */
	int deduplicate;
	/* Batches of fewer rows go past both, since what they would save is
	 * less than the launches cost; 0: 10241, more than one kernel takes. */
	uint32_t sieve_min_rows;
};

/*
 * A ring of (slots + prefetch_slots) * max_rows rows in this process's memory,
 * registered with the table's device (with ENGRAM_CUDA_HOST, another one for
 * what engramd does not deliver), and room for one batch on the device.  NULL
 * params are all defaults.  With a table that is ready, measures both paths,
 * which takes less than a second.  Errors of engram_gather_open, and
 * ENGRAM_ECUDA.
 */
enum engram_status engram_cuda_gather_open(
	engram_cuda_table *table,
	const struct engram_cuda_gather_params *params,
	engram_cuda_gather **out);
/* Synchronise the stream before; replay no graph after.  NULL is allowed. */
enum engram_status engram_cuda_gather_close(engram_cuda_gather *gather);

/*
 * This rank's heads: out bf16 [num_tokens, local_heads, dim].  Call
 * engram_cuda_gather_wake before a graph of it is replayed after a pause.
 */
enum engram_status engram_cuda_gather_lookup(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, uint16_t *out, engram_stream stream);
/* The rows as stored, as engram_cuda_table_lookup_raw writes them. */
enum engram_status engram_cuda_gather_lookup_raw(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, const struct engram_raw_out *out,
	engram_stream stream);

/*
 * A lookup in two calls, for ids that the host knows early: the rows come while
 * the device does something else.  Batches are taken in the order they were
 * posted, none twice, and not by a graph; past the cache.  `ids` is in host
 * memory, int32 [num_tokens, num_cols], and is copied.  *misses, if not NULL,
 * grows by the ids that no row answers; the table's counter does not.
 * ENGRAM_EBUSY while the next slot is in use: take what was posted first, and
 * let the stream get that far.  ENGRAM_EINVAL for more rows than max_rows.
 */
enum engram_status engram_cuda_gather_prefetch(
	engram_cuda_gather *gather, uint32_t layer, const int32_t *ids,
	int64_t ids_token_stride, int64_t ids_head_stride, int64_t num_tokens,
	uint64_t *misses);
/* The oldest batch, of *num_tokens tokens if that is not NULL: out bf16
 * [num_tokens, local_heads, dim].  ENGRAM_ENOTFOUND when there is none. */
enum engram_status engram_cuda_gather_take(engram_cuda_gather *gather,
					   uint16_t *out, int64_t *num_tokens,
					   engram_stream stream);

/* engramd's threads sleep after a pause, and then one looks for posts, later
 * once a millisecond only: have all of them look.  A look at memory if they do
 * not sleep. */
void engram_cuda_gather_wake(engram_cuda_gather *gather);

/* The path that AUTO takes for so many rows of this rank. */
enum engram_cuda_path engram_cuda_gather_path(const engram_cuda_gather *gather,
					      int64_t num_rows);

struct engram_cuda_gather_counters {
	uint64_t posted;   /* batches */
	uint64_t fallback; /* rows that were read without engramd */
	uint64_t failed;   /* rows that are zeros because nobody delivered:
			    * the step is to be repeated */
};
/* Waits for the stream, which must not be captured. */
enum engram_status engram_cuda_gather_counters(
	engram_cuda_gather *gather, engram_stream stream,
	struct engram_cuda_gather_counters *out);

/* Of the lookups that went through a cache, or whose rows were deduplicated;
 * as of some moment ago: nothing is waited for. */
struct engram_cuda_gather_stats {
	uint64_t entries;      /* rows that the cache has room for */
	uint64_t device_bytes; /* of it, and of what finds repeated rows */
	uint64_t rows;	       /* looked up */
	uint64_t hits;	       /* in the cache */
	uint64_t repeats;      /* others that were in the batch before */
	uint64_t fills;	       /* rows that the cache took */
};
enum engram_status engram_cuda_gather_stats(
	const engram_cuda_gather *gather, struct engram_cuda_gather_stats *out);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
