/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that launch nothing, because there is nothing to do or because they
 * are refused: they are answered without a device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "engram_cuda_kernels.h"
#include "engram_segment.h"

/* Never read: there is no launch. */
static uint16_t some[1];

static const struct engram_hash_params hash_params = {
	.num_layers = 1, .min_ngram = 2, .max_ngram = 4, .num_heads = 8};

static struct engram_cuda_source source(void)
{
	return (struct engram_cuda_source){
		.rows = {.codes = some,
			 .scales = some,
			 .row_end = 1,
			 .dtype = ENGRAM_F8_E4M3,
			 .scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
			 .dim = 256,
			 .block_size = 32},
	};
}

static struct engram_gate_args gate(int64_t num_tokens)
{
	return (struct engram_gate_args){.num_tokens = num_tokens,
					 .hc_mult = 4,
					 .dim = 5120,
					 .hidden = some,
					 .q_weight = some,
					 .k_weight = some};
}

static void no_tokens(void **state)
{
	const struct engram_hash_batch batch = {0};
	const struct engram_cuda_source from = source();
	const struct engram_lookup_args lookup = {.local_heads = 24,
						  .total_heads = 24};
	const struct engram_raw_out raw = {.scale_layout =
						   ENGRAM_SCALES_F8_128X4};
	const struct engram_gate_args args = gate(0);
	const struct engram_sp_rows_args sp = {
		.tp_size = 2, .local_heads = 12, .total_heads = 24, .dim = 256};
	const struct engram_comm comm = {.size = 2};
	const struct engram_tp_gather_args gather = {
		.local_heads = 12, .total_heads = 24, .dim = 256};
	struct engram_error err = {0};

	(void)state;
#define OK(call)                                                \
	do {                                                    \
		if (call)                                       \
			fail_msg("%s: %s", #call, err.message); \
	} while (0)
	OK(engram_cuda_hash(&hash_params, &batch, NULL, NULL, NULL, &err));
	OK(engram_cuda_write_slots(&hash_params, &batch, NULL, NULL, &err));
	OK(engram_cuda_lookup(&from, &lookup, NULL, NULL, NULL, &err));
	OK(engram_cuda_lookup_raw(&from, &lookup, &raw, NULL, NULL, &err));
	OK(engram_cuda_decode(&from.rows, 0, NULL, NULL, &err));
	OK(engram_cuda_gate(&args, NULL, NULL, &err));
	OK(engram_cuda_sp_rows(&sp, NULL, NULL, &err));
	OK(engram_cuda_tp_gather(&comm, &gather, NULL, NULL, &err));
}

static void refused(enum engram_status status, const struct engram_error *err,
		    const char *message)
{
	assert_int_equal(status, ENGRAM_EINVAL);
	assert_string_equal(err->message, message);
}

static void too_many(void **state)
{
	struct engram_hash_batch batch = {
		.num_tokens = INT64_MAX,
		.num_requests = 1,
		.input_ids = (const int32_t *)some,
		.positions = (const int64_t *)some,
		.query_start_loc = (const int32_t *)some,
	};
	const struct engram_cuda_source from = source();
	struct engram_lookup_args lookup = {.ids = (const int32_t *)some,
					    .num_tokens = INT64_C(1) << 32,
					    .local_heads = 1,
					    .total_heads = 1};
	struct engram_gate_args args = gate(1);
	struct engram_error err;

	(void)state;
	refused(engram_cuda_hash(&hash_params, &batch, (int32_t *)some, NULL,
				 NULL, &err),
		&err, "num_tokens: too many for one launch");
	refused(engram_cuda_lookup(&from, &lookup, some, NULL, NULL, &err),
		&err, "num_tokens: more than 2^32 rows for one launch");
	lookup.num_tokens = INT64_MAX;
	refused(engram_cuda_lookup(&from, &lookup, some, NULL, NULL, &err),
		&err, "num_tokens: more rows than memory can hold");
	args.hc_mult = 65537;
	refused(engram_cuda_gate(&args, some, NULL, &err), &err,
		"hc_mult: more than 65536");
}

/* What would be launched says what is missing. */
static void no_device(void **state)
{
	const struct engram_gate_args args = gate(1);
	struct engram_error err;
	int devices;

	(void)state;
	if (!cudaGetDeviceCount(&devices) && devices)
		skip();
	assert_int_equal(engram_cuda_gate(&args, some, NULL, &err),
			 ENGRAM_ECUDA);
	assert_non_null(strstr(err.fix, "nvidia-smi"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_tokens),
		cmocka_unit_test(too_many),
		cmocka_unit_test(no_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
