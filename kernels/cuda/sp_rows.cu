/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bring gathered rows into order: a copy of runs, see gather.h.  A warp copies
 * a piece of a run at a time, so that only pieces, not elements, cost a
 * division.
 */
#include "gather.h"
#include "launch.h"

#define THREADS	   256
#define WARP	   32
#define UNROLL	   4 /* loads of a thread under way */
#define PIECE	   (WARP * UNROLL)
#define MAX_BLOCKS 4096 /* more than any device holds at once */

struct plan {
	struct engram_order order;
	int64_t row; /* vectors of a row */
	int64_t pieces;
};

template <typename V>
static __device__ void copy_piece(const V *__restrict__ from,
				  V *__restrict__ to, int64_t begin,
				  int64_t length)
{
	V values[UNROLL];

#pragma unroll
	for (int i = 0; i < UNROLL; i++) {
		int64_t at = begin + i * WARP;

		values[i] = V();
		if (from && at < length)
			values[i] = from[at];
	}
#pragma unroll
	for (int i = 0; i < UNROLL; i++) {
		int64_t at = begin + i * WARP;

		if (at < length)
			to[at] = values[i];
	}
}

template <typename V>
static __global__ void __launch_bounds__(THREADS)
	order_kernel(const __grid_constant__ struct plan plan,
		     const V *__restrict__ gathered, V *__restrict__ out)
{
	const struct engram_order *order = &plan.order;
	int64_t items = order->count * order->runs * plan.pieces;
	int64_t step = (int64_t)gridDim.x * (THREADS / WARP);
	int64_t item =
		(int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;

	for (; item < items; item += step) {
		int64_t run = item / plan.pieces;
		int64_t begin = (item - run * plan.pieces) * PIECE;
		int64_t i = run / order->runs;
		int64_t rank = run - i * order->runs;
		int64_t token = order->first + i;
		int64_t from = engram_order_source(order, token, rank);
		int64_t to = i * order->total_heads + rank * order->local_heads;

		copy_piece(token < order->num_tokens
				   ? gathered + from * plan.row
				   : nullptr,
			   out + to * plan.row, begin + threadIdx.x % WARP,
			   engram_order_heads(order, rank) * plan.row);
	}
}

template <typename V>
static void launch(const struct engram_order *order, uint16_t *out,
		   engram_stream stream)
{
	struct plan plan = {};
	int64_t longest = order->local_heads < order->total_heads
				  ? order->local_heads
				  : order->total_heads;
	int64_t blocks;

	plan.order = *order;
	plan.row = order->dim / (int64_t)(sizeof(V) / sizeof(*out));
	plan.pieces = (longest * plan.row + PIECE - 1) / PIECE;
	blocks = order->count * order->runs;
	if (blocks < MAX_BLOCKS) /* else the product may not fit */
		blocks = (blocks * plan.pieces + THREADS / WARP - 1) /
			 (THREADS / WARP);
	if (blocks > MAX_BLOCKS)
		blocks = MAX_BLOCKS;
	order_kernel<V><<<(unsigned int)blocks, THREADS, 0, stream>>>(
		plan, (const V *)order->gathered, (V *)out);
}

static enum engram_status order_rows(const struct engram_order *order,
				     uint16_t *out, engram_stream stream,
				     struct engram_error *err)
{
	uintptr_t bits = (uintptr_t)order->gathered | (uintptr_t)out |
			 order->dim * sizeof(*out);

	if (bits % sizeof(uint4) == 0)
		launch<uint4>(order, out, stream);
	else
		launch<uint16_t>(order, out, stream);
	return engram_cuda_launched("row order kernel", err);
}

enum engram_status engram_cuda_sp_rows(const struct engram_sp_rows_args *args,
				       uint16_t *out, engram_stream stream,
				       struct engram_error *err)
{
	struct engram_order order;
	enum engram_status status = engram_order_of_sp(args, out, &order, err);

	if (status || !order.count)
		return status;
	return order_rows(&order, out, stream, err);
}

enum engram_status engram_cuda_tp_gather(
	const struct engram_comm *comm,
	const struct engram_tp_gather_args *args, uint16_t *out,
	engram_stream stream, struct engram_error *err)
{
	return engram_gather_by(order_rows, comm, args, out, stream, err);
}
