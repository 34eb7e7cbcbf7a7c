/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate's kernels.  The gate is bound by device memory.  A block keeps to
 * one copy of the residual stream, so that it holds q * k of that copy in
 * registers, and goes through the tokens; hidden is read once and kept for the
 * result.
 */
#ifndef ENGRAM_CUDA_GATE_CUH
#define ENGRAM_CUDA_GATE_CUH

#include "rows.cuh"

#define WARP	    32
#define VECTORS	    2 /* of 8 elements, for each thread */
#define MAX_THREADS 1024

struct gate_task {
	struct engram_gate_args args;
	uint16_t *out;
};

struct sums {
	float hidden, key, dot;
};

static __device__ __forceinline__ void widen(uint4 from, float *to)
{
	const uint32_t word[4] = {from.x, from.y, from.z, from.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		to[2 * i] = engram_float_of_bits(word[i] << 16);
		to[2 * i + 1] = engram_float_of_bits(word[i] & 0xffff0000u);
	}
}

static __device__ __forceinline__ struct sums sum_warp(struct sums part)
{
	for (int half = WARP / 2; half; half /= 2) {
		part.hidden += __shfl_xor_sync(~0u, part.hidden, half);
		part.key += __shfl_xor_sync(~0u, part.key, half);
		part.dot += __shfl_xor_sync(~0u, part.dot, half);
	}
	return part;
}

/* The block's sums, for every thread; in an order that depends on the number
 * of threads alone.  `turn` alternates, so that nobody writes what is still
 * being read. */
static __device__ struct sums sum_block(struct sums part, int turn)
{
	__shared__ struct sums warps[2][MAX_THREADS / WARP];
	uint32_t lane = threadIdx.x % WARP, count = blockDim.x / WARP;

	part = sum_warp(part);
	if (!lane)
		warps[turn][threadIdx.x / WARP] = part;
	__syncthreads();
	part = lane < count ? warps[turn][lane] : (struct sums){0, 0, 0};
	return sum_warp(part);
}

/* How far the gate of a token is open. */
static __device__ float open_gate(const struct engram_gate_args &args,
				  int64_t token, int has_kv, struct sums sums)
{
	float dot =
		sums.dot * (engram_gate_rms(sums.hidden, args.dim, args.eps) *
			    engram_gate_rms(sums.key, args.dim, args.eps));

	if (args.token_mask &&
	    (!has_kv || !args.token_mask[token * args.mask_stride]))
		return 0;
	return engram_gate_open(dot * (1.0f / sqrtf((float)args.dim)),
				args.clamp);
}

/* What a thread reads of a token. */
struct piece {
	uint4 hidden[VECTORS], key[VECTORS], value[VECTORS];
};

static __device__ __forceinline__ struct piece load_piece(
	const struct engram_gate_args &args, int64_t token, uint32_t copy)
{
	const uint16_t *row = args.hidden + token * args.hidden_stride[0] +
			      copy * args.hidden_stride[1];
	const uint16_t *kv = args.kv + token * args.kv_stride[0];
	const uint4 *hidden = (const uint4 *)row;
	const uint4 *key = (const uint4 *)(kv + (int64_t)copy * args.dim);
	const uint4 *value =
		(const uint4 *)(kv + (int64_t)args.hc_mult * args.dim);
	const uint4 none = make_uint4(0, 0, 0, 0);
	int has_kv = token < args.num_kv_tokens;
	struct piece piece;

#pragma unroll
	for (int v = 0; v < VECTORS; v++) {
		uint32_t at = v * blockDim.x + threadIdx.x;
		int mine = at < args.dim / 8;

		piece.hidden[v] = mine ? hidden[at] : none;
		piece.key[v] = mine && has_kv ? __ldcs(key + at) : none;
		piece.value[v] = mine && has_kv ? __ldg(value + at) : none;
	}
	return piece;
}

static __device__ __forceinline__ struct sums sum_piece(
	const struct piece &piece, const float (*qk)[8])
{
	struct sums sums = {0, 0, 0};

#pragma unroll
	for (int v = 0; v < VECTORS; v++) {
		float h[8], key[8];

		widen(piece.hidden[v], h);
		widen(piece.key[v], key);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			sums.hidden = fmaf(h[i], h[i], sums.hidden);
			sums.key = fmaf(key[i], key[i], sums.key);
			sums.dot = fmaf(h[i] * qk[v][i], key[i], sums.dot);
		}
	}
	return sums;
}

static __device__ __forceinline__ uint32_t add_gated(uint32_t hidden,
						     uint32_t value, float gate)
{
	return engram_bf16x2(
		engram_float_of_bits(hidden << 16) +
			gate * engram_float_of_bits(value << 16),
		engram_float_of_bits(hidden & 0xffff0000u) +
			gate * engram_float_of_bits(value & 0xffff0000u));
}

static __device__ __forceinline__ void store_piece(const struct gate_task &task,
						   int64_t token, uint32_t copy,
						   const struct piece &piece,
						   float gate)
{
	uint4 *out = (uint4 *)(task.out + token * task.args.out_stride[0] +
			       copy * task.args.out_stride[1]);

#pragma unroll
	for (int v = 0; v < VECTORS; v++) {
		uint32_t at = v * blockDim.x + threadIdx.x;
		uint4 h = piece.hidden[v], value = piece.value[v];

		if (at < task.args.dim / 8)
			__stcs(out + at,
			       make_uint4(add_gated(h.x, value.x, gate),
					  add_gated(h.y, value.y, gate),
					  add_gated(h.z, value.z, gate),
					  add_gated(h.w, value.w, gate)));
	}
}

/* q * k of this thread's elements. */
static __device__ __forceinline__ void load_weights(
	const struct engram_gate_args &args, uint32_t copy, float (*qk)[8])
{
	const uint4 *q =
		(const uint4 *)(args.q_weight + copy * args.q_stride[0]);
	const uint4 *k =
		(const uint4 *)(args.k_weight + copy * args.k_stride[0]);

#pragma unroll
	for (int v = 0; v < VECTORS; v++) {
		uint32_t at = v * blockDim.x + threadIdx.x;
		float qs[8] = {}, ks[8] = {};

		if (at < args.dim / 8) {
			widen(q[at], qs);
			widen(k[at], ks);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			qk[v][i] = qs[i] * ks[i];
	}
}

/* Rows of whole, aligned vectors. */
static __global__ void __launch_bounds__(MAX_THREADS)
	gate_vectors(const __grid_constant__ struct gate_task task)
{
	const struct engram_gate_args &args = task.args;
	uint32_t copy = blockIdx.x % args.hc_mult;
	int64_t token = blockIdx.x / args.hc_mult;
	int64_t step = gridDim.x / args.hc_mult;
	float qk[VECTORS][8];

	load_weights(args, copy, qk);
	for (int turn = 0; token < args.num_tokens; turn ^= 1, token += step) {
		struct piece piece = load_piece(args, token, copy);
		struct sums sums = sum_block(sum_piece(piece, qk), turn);

		store_piece(task, token, copy, piece,
			    open_gate(args, token, token < args.num_kv_tokens,
				      sums));
	}
}

/* Any dim and strides, element by element. */
static __global__ void __launch_bounds__(MAX_THREADS)
	gate_elements(const __grid_constant__ struct gate_task task)
{
	const struct engram_gate_args &args = task.args;
	uint32_t copy = blockIdx.x % args.hc_mult;
	const uint16_t *q = args.q_weight + copy * args.q_stride[0];
	const uint16_t *k = args.k_weight + copy * args.k_stride[0];

	int64_t token = blockIdx.x / args.hc_mult;
	int64_t step = gridDim.x / args.hc_mult;

	for (int turn = 0; token < args.num_tokens; turn ^= 1, token += step) {
		const uint16_t *hidden = args.hidden +
					 token * args.hidden_stride[0] +
					 copy * args.hidden_stride[1];
		const uint16_t *kv = args.kv + token * args.kv_stride[0];
		uint16_t *out = task.out + token * args.out_stride[0] +
				copy * args.out_stride[1];
		int has_kv = token < args.num_kv_tokens;
		struct sums sums = {0, 0, 0};
		float gate;

		for (int64_t i = threadIdx.x; i < args.dim; i += blockDim.x) {
			float h = engram_bf16_to_float(
				hidden[i * args.hidden_stride[2]]);
			float key =
				has_kv ? engram_bf16_to_float(
						 kv[((int64_t)copy * args.dim +
						     i) *
						    args.kv_stride[1]])
				       : 0;

			sums.hidden += h * h;
			sums.key += key * key;
			sums.dot +=
				h *
				engram_bf16_to_float(q[i * args.q_stride[1]]) *
				engram_bf16_to_float(k[i * args.k_stride[1]]) *
				key;
		}
		gate = open_gate(args, token, has_kv, sum_block(sums, turn));
		for (int64_t i = threadIdx.x; i < args.dim; i += blockDim.x) {
			float h = engram_bf16_to_float(
				hidden[i * args.hidden_stride[2]]);
			float value =
				has_kv ? engram_bf16_to_float(
						 kv[((int64_t)args.hc_mult *
							     args.dim +
						     i) *
						    args.kv_stride[1]])
				       : 0;

			out[i * args.out_stride[2]] =
				engram_bf16_of_float(h + gate * value);
		}
	}
}

#endif
