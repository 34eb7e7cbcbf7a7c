/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "gate.cuh"
#include "launch.h"

static int vector_aligned(const void *pointer, int64_t stride)
{
	return (uintptr_t)pointer % 16 == 0 && stride % 8 == 0;
}

static int in_vectors(const struct engram_gate_args *a, const uint16_t *out)
{
	return a->dim % 8 == 0 && a->dim <= 8 * MAX_THREADS * VECTORS &&
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

static unsigned int threads_for(uint32_t count, int each)
{
	uint32_t threads = (count + each - 1) / each;

	threads = (threads + WARP - 1) / WARP * WARP;
	return threads > MAX_THREADS ? MAX_THREADS : threads;
}

/* Threads that a multiprocessor holds of blocks with 64 registers a thread:
 * three blocks of 320, for a dim of 5120. */
#define HELD 960

/* Four times what the device holds at once, so that none ends much later than
 * the rest; as many for each copy, and no more than there are tokens. */
static unsigned int blocks_for(const struct engram_gate_args *args,
			       unsigned int threads, int multiprocessors)
{
	unsigned int each = 4 * HELD / threads;
	int64_t tokens = ((int64_t)multiprocessors * each + args->hc_mult - 1) /
			 args->hc_mult;

	if (tokens > args->num_tokens)
		tokens = args->num_tokens;
	return (unsigned int)(tokens * args->hc_mult);
}

static void start(const struct gate_task *task, int multiprocessors,
		  engram_stream stream)
{
	const struct engram_gate_args *args = &task->args;
	int vectors = in_vectors(args, task->out);
	unsigned int threads = vectors ? threads_for(args->dim / 8, VECTORS)
				       : threads_for(args->dim, 4);
	unsigned int blocks = blocks_for(args, threads, multiprocessors);

	if (!vectors)
		gate_elements<<<blocks, threads, 0, stream>>>(*task);
	else
		gate_vectors<<<blocks, threads, 0, stream>>>(*task);
}

enum engram_status engram_cuda_gate(const struct engram_gate_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err)
{
	enum engram_status status = engram_check_gate(args, out, err);
	struct gate_task task = {};
	int multiprocessors;

	if (status || !args->num_tokens || !args->hc_mult)
		return status;
	if (args->hc_mult > 65536)
		return engram_invalid(err, "hc_mult", "more than 65536",
				      "call once for each part of the copies");
	status = engram_cuda_multiprocessors(&multiprocessors, err);
	if (status)
		return status;
	task.args = *args;
	task.out = out;
	start(&task, multiprocessors, stream);
	return engram_cuda_launched("gate kernel", err);
}
