/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the backends share of the tensor-parallel gather: the checks, when
 * there is something to send, and where a row stands after an all-gather.
 */
#ifndef ENGRAM_GATHER_H
#define ENGRAM_GATHER_H

#include "engram_comm.h"
#include "engram_math.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Tokens [first, first + count) of what an all-gather left, in the order
 * [count, total_heads, dim].  The heads of one token and one rank stand side by
 * side on both ends: a run, the unit that is copied.
 */
struct engram_order {
	const uint16_t *gathered; /* [size, num_tokens, local_heads, dim] */
	int64_t num_tokens;	  /* those at or past it are zeros */
	int64_t first, count;
	uint32_t size;
	uint32_t runs; /* of a token: ranks that have real heads */
	uint32_t local_heads, total_heads;
	uint32_t dim;
};

/* The first row of a run among the gathered ones. */
ENGRAM_FN int64_t engram_order_source(const struct engram_order *order,
				      int64_t token, int64_t rank)
{
	return ENGRAM_MUTATE(55, rank * order->num_tokens + token,
			     token * order->size + rank) *
	       order->local_heads;
}

/* Real heads of a run; the last one may have fewer. */
ENGRAM_FN int64_t engram_order_heads(const struct engram_order *order,
				     int64_t rank)
{
	int64_t left = order->total_heads - rank * order->local_heads;

	return ENGRAM_MUTATE(57, left < order->local_heads, 0)
		       ? left
		       : order->local_heads;
}

/* Check sequence-parallel arguments and turn them into an order; it has
 * count 0 when there is nothing to do. */
enum engram_status engram_order_of_sp(const struct engram_sp_rows_args *args,
				      const uint16_t *out,
				      struct engram_order *order,
				      struct engram_error *err);

/* A backend's way to bring rows into an order, whose count is not 0. */
typedef enum engram_status engram_order_fn(const struct engram_order *order,
					   uint16_t *out, engram_stream stream,
					   struct engram_error *err);

/* engram_cpu_tp_gather and engram_cuda_tp_gather. */
enum engram_status engram_gather_by(engram_order_fn *bring,
				    const struct engram_comm *comm,
				    const struct engram_tp_gather_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
