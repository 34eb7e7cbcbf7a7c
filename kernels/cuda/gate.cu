/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate is bound by device memory.  A block keeps to one copy of the
 * residual stream, so that it holds q * k of that copy in registers, and goes
 * through the tokens; hidden is read once and kept for the result.
 */
#include "check.h"
#include "launch.h"
#include "rows.cuh"

#define WARP	    32
#define MAX_THREADS 1024
#define MAX_VECTORS 2 /* of 8 elements, for each thread */

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

/* The block's sums, for every thread; in an order that depends on the number
 * of threads alone. */
static __device__ struct sums sum_block(struct sums part)
{
	__shared__ struct sums warps[MAX_THREADS / WARP];
	uint32_t lane = threadIdx.x % WARP, count = blockDim.x / WARP;

	for (int half = WARP / 2; half; half /= 2) {
		part.hidden += __shfl_xor_sync(~0u, part.hidden, half);
		part.key += __shfl_xor_sync(~0u, part.key, half);
		part.dot += __shfl_xor_sync(~0u, part.dot, half);
	}
	__syncthreads(); /* the sums before have been read */
	if (!lane)
		warps[threadIdx.x / WARP] = part;
	__syncthreads();
	part = lane < count ? warps[lane] : (struct sums){0, 0, 0};
	for (int half = WARP / 2; half; half /= 2) {
		part.hidden += __shfl_xor_sync(~0u, part.hidden, half);
		part.key += __shfl_xor_sync(~0u, part.key, half);
		part.dot += __shfl_xor_sync(~0u, part.dot, half);
	}
	return part;
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

/* Rows of whole, aligned vectors, VECTORS of them a thread. */
template <int VECTORS>
static __global__ void __launch_bounds__(MAX_THREADS)
	gate_vectors(const __grid_constant__ struct gate_task task)
{
	const struct engram_gate_args &args = task.args;
	uint32_t copy = blockIdx.x % args.hc_mult;
	uint32_t vectors = args.dim / 8;
	const uint4 none = make_uint4(0, 0, 0, 0);
	float qk[VECTORS][8];

#pragma unroll
	for (int v = 0; v < VECTORS; v++) {
		uint32_t at = v * blockDim.x + threadIdx.x;
		float q[8] = {}, k[8] = {};

		if (at < vectors) {
			widen(((const uint4 *)(args.q_weight +
					       copy * args.q_stride[0]))[at],
			      q);
			widen(((const uint4 *)(args.k_weight +
					       copy * args.k_stride[0]))[at],
			      k);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			qk[v][i] = q[i] * k[i];
	}
	for (int64_t token = blockIdx.x / args.hc_mult; token < args.num_tokens;
	     token += gridDim.x / args.hc_mult) {
		const uint4 *hidden =
			(const uint4 *)(args.hidden +
					token * args.hidden_stride[0] +
					copy * args.hidden_stride[1]);
		const uint16_t *kv = args.kv + token * args.kv_stride[0];
		const uint4 *key =
			(const uint4 *)(kv + (int64_t)copy * args.dim);
		const uint4 *value =
			(const uint4 *)(kv + (int64_t)args.hc_mult * args.dim);
		uint4 *out = (uint4 *)(task.out + token * args.out_stride[0] +
				       copy * args.out_stride[1]);
		int has_kv = token < args.num_kv_tokens;
		uint4 h[VECTORS], val[VECTORS];
		struct sums sums = {0, 0, 0};
		float gate;

#pragma unroll
		for (int v = 0; v < VECTORS; v++) {
			uint32_t at = v * blockDim.x + threadIdx.x;
			int mine = at < vectors;
			uint4 k = mine && has_kv ? __ldcs(key + at) : none;
			float hf[8], kf[8];

			h[v] = mine ? hidden[at] : none;
			val[v] = mine && has_kv ? __ldg(value + at) : none;
			widen(h[v], hf);
			widen(k, kf);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				sums.hidden = fmaf(hf[i], hf[i], sums.hidden);
				sums.key = fmaf(kf[i], kf[i], sums.key);
				sums.dot =
					fmaf(hf[i] * qk[v][i], kf[i], sums.dot);
			}
		}
		gate = open_gate(args, token, has_kv, sum_block(sums));
#pragma unroll
		for (int v = 0; v < VECTORS; v++) {
			uint32_t at = v * blockDim.x + threadIdx.x;
			float hf[8], vf[8];

			widen(h[v], hf);
			widen(val[v], vf);
			if (at < vectors)
				__stcs(out + at,
				       make_uint4(
					       engram_bf16x2(
						       hf[0] + gate * vf[0],
						       hf[1] + gate * vf[1]),
					       engram_bf16x2(
						       hf[2] + gate * vf[2],
						       hf[3] + gate * vf[3]),
					       engram_bf16x2(
						       hf[4] + gate * vf[4],
						       hf[5] + gate * vf[5]),
					       engram_bf16x2(
						       hf[6] + gate * vf[6],
						       hf[7] + gate * vf[7])));
		}
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

	for (int64_t token = blockIdx.x / args.hc_mult; token < args.num_tokens;
	     token += gridDim.x / args.hc_mult) {
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
		gate = open_gate(args, token, has_kv, sum_block(sums));
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

static int vector_aligned(const void *pointer, int64_t stride)
{
	return (uintptr_t)pointer % 16 == 0 && stride % 8 == 0;
}

static int in_vectors(const struct engram_gate_args *a, const uint16_t *out)
{
	return a->dim % 8 == 0 && a->dim <= 8 * MAX_THREADS * MAX_VECTORS &&
	       a->hidden_stride[2] == 1 && a->kv_stride[1] == 1 &&
	       a->q_stride[1] == 1 && a->k_stride[1] == 1 &&
	       a->out_stride[2] == 1 &&
	       vector_aligned(a->hidden, a->hidden_stride[0]) &&
	       vector_aligned(a->hidden, a->hidden_stride[1]) &&
	       vector_aligned(a->kv, a->kv_stride[0]) &&
	       vector_aligned(a->q_weight, a->q_stride[0]) &&
	       vector_aligned(a->k_weight, a->k_stride[0]) &&
	       vector_aligned(out, a->out_stride[0]) &&
	       vector_aligned(out, a->out_stride[1]);
}

/* One vector a thread is fastest up to the 640 threads of a dim of 5120. */
static int vectors_each(uint32_t dim)
{
	return dim / 8 <= 640 ? 1 : MAX_VECTORS;
}

static unsigned int threads_for(uint32_t count, int each)
{
	uint32_t threads = (count + each - 1) / each;

	threads = (threads + WARP - 1) / WARP * WARP;
	return threads > MAX_THREADS ? MAX_THREADS : threads;
}

static void start(const struct gate_task *task, unsigned int copies_at_once,
		  engram_stream stream)
{
	const struct engram_gate_args *args = &task->args;
	int each = vectors_each(args->dim);
	unsigned int blocks = copies_at_once * args->hc_mult;
	unsigned int threads = threads_for(args->dim / 8, each);

	if (!in_vectors(args, task->out))
		gate_elements<<<blocks, threads_for(args->dim, 4), 0, stream>>>(
			*task);
	else if (each == 1)
		gate_vectors<1><<<blocks, threads, 0, stream>>>(*task);
	else
		gate_vectors<MAX_VECTORS>
			<<<blocks, threads, 0, stream>>>(*task);
}

enum engram_status engram_cuda_gate(const struct engram_gate_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err)
{
	enum engram_status status = engram_check_gate(args, out, err);
	struct gate_task task = {};
	int64_t tokens_at_once;
	int multiprocessors;

	if (!status)
		status = engram_cuda_multiprocessors(&multiprocessors, err);
	if (status || !args->num_tokens || !args->hc_mult)
		return status;
	if (args->hc_mult > 65536)
		return engram_invalid(err, "hc_mult", "more than 65536",
				      "call once for each part of the copies");
	task.args = *args;
	task.out = out;
	/* some blocks a multiprocessor, so that loads of one overlap sums of
	 * another */
	tokens_at_once = ((int64_t)multiprocessors * 8 + args->hc_mult - 1) /
			 args->hc_mult;
	if (tokens_at_once > args->num_tokens)
		tokens_at_once = args->num_tokens;
	start(&task, (unsigned int)tokens_at_once, stream);
	return engram_cuda_launched("gate kernel", err);
}
