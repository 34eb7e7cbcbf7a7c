/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather over NCCL: a world of one, whose all_gather is called all the
 * same, also from a graph; and a world of all GPUs of this machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include "cuda_test.h"
#include "engram_cuda.h"
#include "gather_case.h"

static __typeof__(ncclCommInitAll) *init_all;
static __typeof__(ncclCommDestroy) *destroy;
static __typeof__(ncclGetErrorString) *error_string;
static ncclComm_t comms[LOOPBACK_MAX];

/* Before NCCL is loaded: ours must not load one of its own. */
static void test_without_nccl(void **state)
{
	struct engram_comm comm;
	int something;

	(void)state;
	assert_int_equal(engram_nccl_comm(&something, &comm),
			 ENGRAM_EUNSUPPORTED);
	assert_true(engram_last_error()->fix[0]);
	assert_int_equal(engram_nccl_comm(NULL, &comm), ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message, "nccl_comm: NULL");
}

static void need_nccl(void)
{
	/* as a Python module has it: no name of it is visible to all */
	void *library =
		init_all ? NULL : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

	if (!init_all && !library) {
		print_message("skipped: %s\n", dlerror());
		skip();
	}
	if (init_all)
		return;
	init_all = (__typeof__(init_all))dlsym(library, "ncclCommInitAll");
	destroy = (__typeof__(destroy))dlsym(library, "ncclCommDestroy");
	error_string =
		(__typeof__(error_string))dlsym(library, "ncclGetErrorString");
	assert_true(init_all && destroy && error_string);
}

static void open_world(int size)
{
	ncclResult_t result = init_all(comms, size, NULL);

	if (result)
		fail_msg("ncclCommInitAll of %d: %s", size,
			 error_string(result));
}

static void close_world(int size)
{
	for (int i = 0; i < size; i++)
		destroy(comms[i]);
}

static void check_copied(const uint16_t *recv, const uint16_t *want,
			 size_t bytes)
{
	uint16_t *got = cuda_fetch(recv, bytes);

	assert_memory_equal(got, want, bytes);
	free(got);
}

static void test_world_of_one(void **state)
{
	struct gather_case c = {.size = 1,
				.heads = 5,
				.local_heads = 5,
				.dim = 24,
				.tokens = 7};
	size_t bytes = (size_t)gather_in(&c) * sizeof(uint16_t);
	struct engram_tp_gather_args args = {.num_tokens = c.tokens,
					     .local_heads = c.local_heads,
					     .total_heads = c.heads,
					     .dim = c.dim};
	uint16_t *rows = malloc(bytes), *send, *recv;
	struct engram_comm comm;
	struct engram_error err;
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph;

	(void)state;
	need_nccl();
	open_world(1);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	gather_fill(&c, 0, rows);
	send = cuda_copy(rows, bytes);
	recv = cuda_room(bytes);
	OK(engram_nccl_comm(comms[0], &comm), engram_last_error());
	assert_int_equal(comm.size, 1);
	assert_int_equal(comm.rank, 0);

	CUDA(cudaMemset(recv, 0xa5, bytes));
	OK(comm.all_gather(comm.context, send, recv, bytes, stream, &err),
	   &err);
	CUDA(cudaStreamSynchronize(stream));
	check_copied(recv, rows, bytes);

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	OK(comm.all_gather(comm.context, send, recv, bytes, stream, &err),
	   &err);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	CUDA(cudaMemset(recv, 0xa5, bytes));
	CUDA(cudaGraphLaunch(exec, stream));
	CUDA(cudaStreamSynchronize(stream));
	check_copied(recv, rows, bytes);

	CUDA(cudaMemset(recv, 0xa5, bytes));
	args.rows = send;
	OK(engram_cuda_tp_gather(&comm, &args, recv, stream, &err), &err);
	CUDA(cudaStreamSynchronize(stream));
	check_copied(recv, rows, bytes);

	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaFree(send));
	CUDA(cudaFree(recv));
	free(rows);
	close_world(1);
}

/* NCCL's text comes through, and no CUDA error stays behind. */
static void test_error(void **state)
{
	struct engram_comm comm;
	struct engram_error err;

	(void)state;
	need_nccl();
	open_world(1);
	OK(engram_nccl_comm(comms[0], &comm), engram_last_error());
	assert_int_equal(comm.all_gather(NULL, &err, &err, 1, NULL, &err),
			 ENGRAM_ENCCL);
	assert_ptr_equal(strstr(err.message, "ncclAllGather: "), err.message);
	assert_non_null(strstr(err.message, error_string(ncclInvalidArgument)));
	assert_int_equal(cudaGetLastError(), cudaSuccess);
	close_world(1);
}

/* A rank on its device; the loop-back only starts the threads. */
static enum engram_status run_rank(const struct engram_comm *loopback,
				   void *arg, struct engram_error *err)
{
	const struct gather_case *c = arg;
	size_t in = (size_t)gather_in(c) * sizeof(uint16_t);
	size_t out = (size_t)gather_out(c) * sizeof(uint16_t);
	struct engram_tp_gather_args args = {
		.num_tokens = c->tokens,
		.local_heads = c->local_heads,
		.total_heads = c->heads,
		.dim = c->dim,
		.sequence_parallel = c->sequence_parallel,
	};
	uint16_t *host = malloc(in + 1), *got, *device;
	enum engram_status status;
	struct engram_comm comm;
	cudaStream_t stream;

	CUDA(cudaSetDevice((int)loopback->rank));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	OK(engram_nccl_comm(comms[loopback->rank], &comm), engram_last_error());
	gather_fill(c, comm.rank, host);
	args.rows = cuda_copy(host, in);
	args.gathered = cuda_room(in * c->size);
	device = cuda_room(out);
	CUDA(cudaDeviceSynchronize());
	status = engram_cuda_tp_gather(&comm, &args, device, stream, err);
	CUDA(cudaStreamSynchronize(stream));
	got = cuda_fetch(device, out);
	if (!status && (comm.rank != loopback->rank || comm.size != c->size ||
			gather_differs(c, comm.rank, got) >= 0))
		status = engram_error_set(err, ENGRAM_EINTERNAL,
					  "wrong rows, rank %u of %u",
					  comm.rank, comm.size);
	free(got);
	free(host);
	CUDA(cudaFree((void *)args.rows));
	CUDA(cudaFree(args.gathered));
	CUDA(cudaFree(device));
	CUDA(cudaStreamDestroy(stream));
	return status;
}

static void test_all_devices(void **state)
{
	struct gather_case c = {.heads = 24, .dim = 256, .tokens = 333};
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {0};
	int count;

	(void)state;
	need_nccl();
	CUDA(cudaGetDeviceCount(&count));
	if (count < 2) {
		print_message("skipped: one GPU\n");
		skip();
	}
	params.size = count < LOOPBACK_MAX ? (uint32_t)count : LOOPBACK_MAX;
	c.size = params.size;
	c.local_heads = (c.heads + c.size - 1) / c.size;
	open_world((int)c.size);
	for (; c.sequence_parallel < 2; c.sequence_parallel++) {
		loopback_run(&params, run_rank, &c, results);
		for (uint32_t rank = 0; rank < c.size; rank++)
			if (results[rank].status)
				fail_msg("%s", results[rank].err.message);
	}
	close_world((int)c.size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_nccl),
		cmocka_unit_test(test_world_of_one),
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_all_devices),
	};

	cuda_need_device();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
	printf("skipped: no nccl.h\n");
	return 77;
}
#endif
