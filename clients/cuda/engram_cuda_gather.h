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
 * registered (ENGRAM_CUDA_HOST), it is zeros, and `failed` counts it.
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
	uint32_t slots;	   /* batches in the ring, 1..8; 0: 2 */
	uint32_t max_rows; /* of a batch; more are several; 0: 196608 */
	int timeout_ms;	   /* for a batch; 0: 20, or, with ENGRAM_CUDA_HOST,
			    * where the rows are lost then, 1000 */
	int no_measuring;  /* AUTO and HYBRID are HOST then */
};

/*
 * A ring of slots * max_rows rows in this process's memory, registered with the
 * table's device, and room for one batch on the device.  NULL params are all
 * defaults.  With a table that is ready, measures both paths, which takes less
 * than a second.  Errors of engram_gather_open, and ENGRAM_ECUDA.
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

/* engramd's threads sleep after a pause, and then one looks for posts, later
 * once a millisecond only: have all of them look.  A look at memory if they do
 * not sleep. */
void engram_cuda_gather_wake(engram_cuda_gather *gather);

/* The path that AUTO takes for so many rows of this rank. */
enum engram_cuda_path engram_cuda_gather_path(const engram_cuda_gather *gather,
					      int64_t num_rows);

struct engram_cuda_gather_counters {
	uint64_t posted;   /* batches */
	uint64_t fallback; /* rows that were read over UVA instead */
	uint64_t failed;   /* rows that are zeros because nobody delivered */
};
/* Waits for the stream, which must not be captured. */
enum engram_status engram_cuda_gather_counters(
	engram_cuda_gather *gather, engram_stream stream,
	struct engram_cuda_gather_counters *out);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
