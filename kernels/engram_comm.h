/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: every rank has looked up its own heads; put them
 * together.  The communicator is the caller's: NCCL in engram_cuda.h, a
 * loop-back of threads in the tests.
 */
#ifndef ENGRAM_COMM_H
#define ENGRAM_COMM_H

#include "engram_kernels.h"

#pragma GCC visibility push(default) /* libengram and libengram_cuda export */
#ifdef __cplusplus
extern "C" {
#endif

/* cudaStream_t and CUstream, without their headers; NULL is the default
 * stream, and means nothing on the CPU. */
typedef struct CUstream_st *engram_stream;

struct engram_comm {
	uint32_t rank, size;
	/* The `bytes` at `send` of every rank, in rank order, to
	 * recv[size * bytes]; ordered in the stream.  All ranks call it with
	 * the same size. */
	enum engram_status (*all_gather)(void *context, const void *send,
					 void *recv, size_t bytes,
					 engram_stream stream,
					 struct engram_error *err);
	void *context;
};

struct engram_tp_gather_args {
	const uint16_t *rows; /* bf16 [num_tokens, local_heads, dim] */
	/* room for [size, num_tokens, local_heads, dim]; not used with one
	 * rank */
	uint16_t *gathered;
	int64_t num_tokens; /* the same on every rank */
	uint32_t local_heads, total_heads;
	uint32_t dim;
	/* 0: every rank gets all tokens, out [num_tokens, total_heads, dim].
	 * Otherwise each gets its share of them, as engram_cpu_sp_rows:
	 * out [ceil(num_tokens / size), total_heads, dim]. */
	int sequence_parallel;
};

/*
 * Collective: idle ranks call it too, with the num_tokens of the others.  Zero
 * tokens are no collective.  ENGRAM_EINVAL before anything was sent, or what
 * all_gather gives.  `out` may be `rows` itself for one rank without padded
 * heads; all_gather and gathered may be NULL there.
 */
enum engram_status engram_cpu_tp_gather(
	const struct engram_comm *comm,
	const struct engram_tp_gather_args *args, uint16_t *out,
	struct engram_error *err);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
