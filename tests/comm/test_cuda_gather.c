/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor-parallel gather and sequence-parallel rows on a GPU: ranks 1 to
 * 8 share a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda_test.h"
#include "engram_cuda_kernels.h"
#include "gather_case.h"

#define FILL	  0xa5
#define FILL_WORD 0xa5a5
#define MARGIN	  64 /* elements behind every output, which must stay */

struct job {
	struct gather_case c;
	/* elements between what cudaMalloc gives and the arrays: odd ones take
	 * the vectors away */
	int shift;
	uint16_t *rows[LOOPBACK_MAX], *gathered[LOOPBACK_MAX];
	uint16_t *out[LOOPBACK_MAX];
	cudaStream_t streams[LOOPBACK_MAX];
};

static enum engram_status run_rank(const struct engram_comm *comm, void *arg,
				   struct engram_error *err)
{
	const struct job *job = arg;
	struct engram_tp_gather_args args = {
		.rows = job->rows[comm->rank] + job->shift,
		.gathered = job->gathered[comm->rank] + job->shift,
		.num_tokens = job->c.tokens,
		.local_heads = job->c.local_heads,
		.total_heads = job->c.heads,
		.dim = job->c.dim,
		.sequence_parallel = job->c.sequence_parallel,
	};
	cudaStream_t stream = job->streams[comm->rank];
	enum engram_status status = ENGRAM_OK;

	/* twice: nothing may be sent before all have read the last */
	for (int i = 0; !status && i < 2; i++)
		status = engram_cuda_tp_gather(
			comm, &args, job->out[comm->rank] + job->shift, stream,
			err);
	CUDA(cudaStreamSynchronize(stream));
	return status;
}

static void job_open(struct job *job)
{
	const struct gather_case *c = &job->c;
	size_t in = (size_t)gather_in(c), out = (size_t)gather_out(c);
	uint16_t *rows = malloc((in + 1) * sizeof(*rows));

	assert_non_null(rows);
	for (uint32_t rank = 0; rank < c->size; rank++) {
		size_t bytes = (out + MARGIN) * sizeof(*rows);

		gather_fill(c, rank, rows);
		job->rows[rank] = cuda_room((in + 1) * sizeof(*rows));
		CUDA(cudaMemcpy(job->rows[rank] + job->shift, rows,
				in * sizeof(*rows), cudaMemcpyHostToDevice));
		job->gathered[rank] =
			cuda_room((in * c->size + 1) * sizeof(*rows));
		job->out[rank] = cuda_room(bytes);
		CUDA(cudaMemset(job->out[rank], FILL, bytes));
		CUDA(cudaStreamCreateWithFlags(&job->streams[rank],
					       cudaStreamNonBlocking));
	}
	CUDA(cudaDeviceSynchronize());
	free(rows);
}

static void job_close(struct job *job)
{
	for (uint32_t rank = 0; rank < job->c.size; rank++) {
		CUDA(cudaFree(job->rows[rank]));
		CUDA(cudaFree(job->gathered[rank]));
		CUDA(cudaFree(job->out[rank]));
		CUDA(cudaStreamDestroy(job->streams[rank]));
	}
}

static void check_rank(const struct job *job, uint32_t rank)
{
	const struct gather_case *c = &job->c;
	size_t count = (size_t)gather_out(c);
	uint16_t *got =
		cuda_fetch(job->out[rank], (count + MARGIN) * sizeof(*got));
	int64_t differs = gather_differs(c, rank, got + job->shift);

	if (differs >= 0)
		fail_msg("rank %u of %u, %u heads, %u each, dim %u, %lld "
			 "tokens, sp %d, shift %d: element %lld is 0x%04x",
			 rank, c->size, c->heads, c->local_heads, c->dim,
			 (long long)c->tokens, c->sequence_parallel, job->shift,
			 (long long)differs, got[job->shift + differs]);
	for (int i = 0; i < job->shift; i++)
		assert_int_equal(got[i], FILL_WORD);
	for (int i = job->shift; i < MARGIN; i++)
		assert_int_equal(got[count + (size_t)i], FILL_WORD);
	free(got);
}

static void check_case(const struct gather_case *c, int shift)
{
	struct loopback_result results[LOOPBACK_MAX];
	struct job job = {.c = *c, .shift = shift};
	struct loopback_params params = {.size = c->size};
	struct loopback_cuda lo;

	loopback_cuda_open(&lo, c->size);
	params.ops = &lo.ops;
	job_open(&job);
	loopback_run(&params, run_rank, &job, results);
	for (uint32_t rank = 0; rank < c->size; rank++) {
		if (results[rank].status)
			fail_msg("rank %u of %u: %s", rank, c->size,
				 results[rank].err.message);
		check_rank(&job, rank);
	}
	job_close(&job);
	loopback_cuda_close(&lo);
}

static void check_size(uint32_t size, uint32_t dim, int shift)
{
	struct gather_case c = {.size = size, .dim = dim};

	for (size_t h = 0; h < GATHER_COUNT(gather_heads); h++)
		for (size_t t = 0; t < GATHER_COUNT(gather_tokens); t++)
			for (int sp = 0; sp < 2; sp++) {
				c.heads = gather_heads[h];
				c.local_heads = (c.heads + size - 1) / size;
				c.tokens = gather_tokens[t];
				c.sequence_parallel = sp;
				check_case(&c, shift);
			}
}

static void test_every_size(void **state)
{
	(void)state;
	for (uint32_t size = 1; size <= LOOPBACK_MAX; size++) {
		check_size(size, 8, 0); /* by vectors */
		check_size(size, 3, 0); /* by elements */
	}
	check_size(3, 8, 1); /* not aligned to vectors */
}

/* The released table, and more work than a grid has blocks; pieces of a run
 * that end in its middle; a single rank with padded heads. */
static void test_large(void **state)
{
	struct gather_case released = {.size = 8,
				       .heads = 24,
				       .local_heads = 3,
				       .dim = 256,
				       .tokens = 5001};
	struct gather_case long_run = {.size = 2,
				       .heads = 31,
				       .local_heads = 16,
				       .dim = 1000,
				       .tokens = 5};
	struct gather_case padded = {.size = 1,
				     .heads = 5,
				     .local_heads = 7,
				     .dim = 64,
				     .tokens = 9};

	(void)state;
	for (int sp = 0; sp < 2; sp++) {
		released.sequence_parallel = sp;
		long_run.sequence_parallel = sp;
		padded.sequence_parallel = sp;
		check_case(&released, 0);
		check_case(&long_run, 0);
		check_case(&long_run, 1);
		check_case(&padded, 0);
	}
}

/* Places past 2^31 elements on the way in and out. */
static void test_beyond_32_bits(void **state)
{
	struct engram_sp_rows_args args = {.num_tokens = 720001,
					   .tp_size = 2,
					   .tp_rank = 0,
					   .local_heads = 12,
					   .total_heads = 24,
					   .dim = 256};
	size_t run = (size_t)args.local_heads * args.dim;
	size_t in = 2 * (size_t)args.num_tokens * run;
	size_t chunk = 360001, out = chunk * 2 * run;
	uint16_t mark = 0x1234, got, *gathered, *rows;
	struct engram_error err;

	(void)state;
	assert_true(out > (size_t)1 << 31 && in > out);
	if (cudaMalloc((void **)&gathered, in * sizeof(*gathered))) {
		cudaGetLastError();
		print_message("skipped: no 14 GiB of device memory\n");
		skip();
	}
	rows = cuda_room(out * sizeof(*rows));
	CUDA(cudaMemset(gathered, 0, in * sizeof(*gathered)));
	CUDA(cudaMemset(rows, FILL, out * sizeof(*rows)));
	/* the last element of rank 1's last token within rank 0's share */
	CUDA(cudaMemcpy(gathered + ((size_t)args.num_tokens + chunk) * run - 1,
			&mark, sizeof(mark), cudaMemcpyHostToDevice));
	args.gathered = gathered;
	OK(engram_cuda_sp_rows(&args, rows, NULL, &err), &err);
	CUDA(cudaMemcpy(&got, rows + out - 1, sizeof(got),
			cudaMemcpyDeviceToHost));
	assert_int_equal(got, mark);
	CUDA(cudaMemcpy(&got, rows + out - 2, sizeof(got),
			cudaMemcpyDeviceToHost));
	assert_int_equal(got, 0);
	CUDA(cudaFree(gathered));
	CUDA(cudaFree(rows));
}

/* The rank that fails and those that wait for it; the device goes on. */
static void test_all_gather_fails(void **state)
{
	struct job job = {.c = {.size = 4,
				.heads = 8,
				.local_heads = 2,
				.dim = 8,
				.tokens = 3}};
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {
		.size = 4, .fail_rank = 3, .fail_call = 2};
	struct loopback_cuda lo;

	(void)state;
	loopback_cuda_open(&lo, 4);
	params.ops = &lo.ops;
	job_open(&job);
	loopback_run(&params, run_rank, &job, results);
	for (uint32_t rank = 0; rank < 4; rank++) {
		assert_int_equal(results[rank].status, ENGRAM_ENCCL);
		check_rank(&job, rank); /* what the first call left */
	}
	job_close(&job);
	loopback_cuda_close(&lo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_size),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_beyond_32_bits),
		cmocka_unit_test(test_all_gather_fails),
	};

	cuda_need_device();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
