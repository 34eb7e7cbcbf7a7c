/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor-parallel gather on the CPU: every rank of a world in a thread,
 * against a plain model and the golden cases; ranks that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gather_case.h"
#include "loopback.h"
#include "safetensors_case.h"

#define FILL 0xa5

/* Threads may not assert: each leaves its rows here, to be looked at after. */
struct job {
	struct engram_tp_gather_args args;
	const uint16_t *rows[LOOPBACK_MAX];
	uint16_t *gathered[LOOPBACK_MAX], *out[LOOPBACK_MAX];
	int times; /* one after the other */
};

static enum engram_status run_rank(const struct engram_comm *comm, void *arg,
				   struct engram_error *err)
{
	const struct job *job = arg;
	struct engram_tp_gather_args args = job->args;
	enum engram_status status = ENGRAM_OK;

	args.rows = job->rows[comm->rank];
	args.gathered = job->gathered[comm->rank];
	for (int i = 0; !status && i < job->times; i++)
		status = engram_cpu_tp_gather(comm, &args, job->out[comm->rank],
					      err);
	return status;
}

static void *room(int64_t elements)
{
	size_t bytes = (size_t)elements * sizeof(uint16_t);
	void *p = malloc(bytes + 1); /* never NULL for nothing */

	assert_non_null(p);
	memset(p, FILL, bytes);
	return p;
}

static void job_open(struct job *job, const struct gather_case *c)
{
	*job = (struct job){
		.args = {.num_tokens = c->tokens,
			 .local_heads = c->local_heads,
			 .total_heads = c->heads,
			 .dim = c->dim,
			 .sequence_parallel = c->sequence_parallel},
		.times = 1,
	};
	for (uint32_t rank = 0; rank < c->size; rank++) {
		uint16_t *rows = room(gather_in(c));

		gather_fill(c, rank, rows);
		job->rows[rank] = rows;
		job->gathered[rank] = room(gather_in(c) * c->size);
		job->out[rank] = room(gather_out(c));
	}
}

static void job_close(struct job *job)
{
	for (int rank = 0; rank < LOOPBACK_MAX; rank++) {
		free((void *)job->rows[rank]);
		free(job->gathered[rank]);
		free(job->out[rank]);
	}
}

static void check_case(const struct gather_case *c)
{
	struct loopback_params params = {.size = c->size};
	struct loopback_result results[LOOPBACK_MAX];
	int sends = c->size > 1 && c->tokens > 0;
	struct job job;

	job_open(&job, c);
	loopback_run(&params, run_rank, &job, results);
	for (uint32_t rank = 0; rank < c->size; rank++) {
		if (results[rank].status)
			fail_msg("rank %u of %u: %s", rank, c->size,
				 results[rank].err.message);
		assert_int_equal(results[rank].calls, sends);
		if (gather_differs(c, rank, job.out[rank]) >= 0)
			fail_msg("rank %u of %u, %u heads, %lld tokens, sp %d: "
				 "element %lld",
				 rank, c->size, c->heads, (long long)c->tokens,
				 c->sequence_parallel,
				 (long long)gather_differs(c, rank,
							   job.out[rank]));
	}
	job_close(&job);
}

static void check_size(uint32_t size)
{
	struct gather_case c = {.size = size, .dim = 3};

	for (size_t h = 0; h < GATHER_COUNT(gather_heads); h++)
		for (size_t t = 0; t < GATHER_COUNT(gather_tokens); t++)
			for (int sp = 0; sp < 2; sp++) {
				c.heads = gather_heads[h];
				c.local_heads = (c.heads + size - 1) / size;
				c.tokens = gather_tokens[t];
				c.sequence_parallel = sp;
				check_case(&c);
			}
}

static void test_every_size(void **state)
{
	(void)state;
	for (uint32_t size = 1; size <= LOOPBACK_MAX; size++)
		check_size(size);
}

/* More heads a rank than it takes: whole ranks of padding, and a single rank
 * with some. */
static void test_spare_heads(void **state)
{
	struct gather_case c = {
		.size = 4, .heads = 5, .local_heads = 4, .dim = 8, .tokens = 6};

	(void)state;
	for (c.sequence_parallel = 0; c.sequence_parallel < 2;
	     c.sequence_parallel++) {
		c.size = 4;
		check_case(&c);
		c.size = 2;
		check_case(&c);
		c.size = 1;
		c.local_heads = 7;
		check_case(&c);
		c.local_heads = 4;
	}
}

/* Rows of a golden file, as each rank would have looked them up. */
static void job_of_golden(struct job *job, const struct golden_case *g,
			  uint32_t size, const uint16_t *gathered)
{
	int64_t part, out;

	*job = (struct job){
		.args = {.num_tokens = golden_int(g, "num_tokens"),
			 .local_heads = (uint32_t)golden_int(g, "local_heads"),
			 .total_heads = (uint32_t)golden_int(g, "total_heads"),
			 .dim = (uint32_t)golden_int(g, "dim"),
			 .sequence_parallel = 1},
		.times = 1,
	};
	part = job->args.num_tokens * job->args.local_heads * job->args.dim;
	out = (job->args.num_tokens + size - 1) / size * job->args.total_heads *
	      job->args.dim;
	for (uint32_t rank = 0; rank < size; rank++) {
		uint16_t *rows = room(part);

		memcpy(rows, gathered + rank * part,
		       (size_t)part * sizeof(*rows));
		job->rows[rank] = rows;
		job->gathered[rank] = room(part * size);
		job->out[rank] = room(out);
	}
}

static void check_golden(const char *path)
{
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {0};
	struct golden_case g;
	int64_t shape[3];
	struct job job;

	golden_open(&g, path);
	params.size = (uint32_t)golden_int(&g, "tp_size");
	job_of_golden(&job, &g, params.size,
		      golden_need(&g, "gathered", "BF16", 3, shape));
	loopback_run(&params, run_rank, &job, results);
	for (uint32_t rank = 0; rank < params.size; rank++) {
		const uint16_t *want;
		char name[64];

		snprintf(name, sizeof(name), "expected_rank%u", rank);
		want = golden_need(&g, name, "BF16", 3, shape);
		assert_int_equal(results[rank].status, ENGRAM_OK);
		assert_memory_equal(job.out[rank], want,
				    (size_t)(shape[0] * shape[1] * shape[2]) *
					    sizeof(*want));
	}
	job_close(&job);
	golden_close(&g);
}

static void test_golden(void **state)
{
	(void)state;
	check_golden("tests/golden/sp_rows_even.safetensors");
	check_golden("tests/golden/sp_rows_padded_heads.safetensors");
	check_golden("tests/golden/sp_rows_ragged.safetensors");
}

static const struct gather_case four = {
	.size = 4, .heads = 8, .local_heads = 2, .dim = 4, .tokens = 3};

/* The rank that fails says why, the others that it left; nobody waits for
 * ever. */
static void test_all_gather_fails(void **state)
{
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {
		.size = 4, .fail_rank = 2, .fail_call = 2};
	struct job job;

	(void)state;
	job_open(&job, &four);
	job.times = 3;
	loopback_run(&params, run_rank, &job, results);
	for (uint32_t rank = 0; rank < 4; rank++) {
		char want[128];

		snprintf(want, sizeof(want),
			 "gathering heads, rank %u of 4: %s", rank,
			 rank == 2 ? "made to fail" : "a rank has left");
		assert_int_equal(results[rank].status, ENGRAM_ENCCL);
		assert_string_equal(results[rank].err.message, want);
		assert_int_equal(results[rank].calls, 2);
	}
	job_close(&job);
}

static void test_bad_arguments_on_one_rank(void **state)
{
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {.size = 4};
	struct job job;

	(void)state;
	job_open(&job, &four);
	free((void *)job.rows[1]);
	job.rows[1] = NULL;
	loopback_run(&params, run_rank, &job, results);
	assert_int_equal(results[1].status, ENGRAM_EINVAL);
	assert_string_equal(results[1].err.message, "rows: NULL");
	assert_int_equal(results[1].calls, 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		if (rank != 1)
			assert_int_equal(results[rank].status, ENGRAM_ENCCL);
	job_close(&job);
}

static void refuse(const struct engram_comm *comm,
		   const struct engram_tp_gather_args *args, uint16_t *out,
		   const char *message)
{
	struct engram_error err;

	assert_int_equal(engram_cpu_tp_gather(comm, args, out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, message);
	assert_true(err.fix[0]);
}

static enum engram_status never(void *context, const void *send, void *recv,
				size_t bytes, engram_stream stream,
				struct engram_error *err)
{
	(void)context;
	(void)send;
	(void)recv;
	(void)bytes;
	(void)stream;
	(void)err;
	abort();
}

static void test_refusals(void **state)
{
	uint16_t rows[8] = {0}, gathered[16], out[16];
	const struct engram_tp_gather_args good = {.rows = rows,
						   .gathered = gathered,
						   .num_tokens = 1,
						   .local_heads = 2,
						   .total_heads = 4,
						   .dim = 4};
	struct engram_tp_gather_args args = good;
	struct engram_comm two = {.size = 2};

	(void)state;
	refuse(NULL, &good, out, "comm: NULL");
	refuse(&two, &good, out, "comm.all_gather: NULL");
	refuse(&two, &good, NULL, "out: NULL");
	two.all_gather = never;
	refuse(&two, &good, rows, "out: the same as rows");
	args.gathered = NULL;
	refuse(&two, &args, out, "gathered: NULL");
	args = good;
	args.rows = NULL;
	refuse(&two, &args, out, "rows: NULL");
	args = good;
	args.num_tokens = INT64_MAX / 4;
	refuse(&two, &args, out,
	       "rank 0 of 2, 2 heads each, 4 in all, 2305843009213693951 "
	       "tokens");
	two.rank = 2;
	refuse(&two, &good, out,
	       "rank 2 of 2, 2 heads each, 4 in all, 1 tokens");
	two.size = 0;
	refuse(&two, &good, out,
	       "rank 2 of 0, 2 heads each, 4 in all, 1 tokens");
}

static void test_one_rank(void **state)
{
	uint16_t rows[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {0};
	struct engram_tp_gather_args args = {.rows = rows,
					     .num_tokens = 1,
					     .local_heads = 2,
					     .total_heads = 2,
					     .dim = 4};
	struct engram_comm one = {.size = 1};
	struct engram_error err;

	(void)state;
	assert_int_equal(engram_cpu_tp_gather(&one, &args, out, &err), 0);
	assert_memory_equal(out, rows, sizeof(rows));
	assert_int_equal(engram_cpu_tp_gather(&one, &args, rows, &err), 0);
	assert_memory_equal(out, rows, sizeof(rows));
	args.total_heads = 1;
	refuse(&one, &args, rows, "out: the same as rows");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_size),
		cmocka_unit_test(test_spare_heads),
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_all_gather_fails),
		cmocka_unit_test(test_bad_arguments_on_one_rank),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_one_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
