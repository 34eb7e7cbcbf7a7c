/* SPDX-License-Identifier: Apache-2.0 */
/* The gate at the ends of memory, on any strides and bits, and what it
 * refuses.  Its values: golden files and tests/kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engram_kernels.h"
#include "float_env.h"
#include "guard.h"

#define TOKENS	3
#define MAX_DIM 257
#define MAX_HC	8
#define MAX_OUT (TOKENS * MAX_HC * MAX_DIM)
#define MAX_KV	(TOKENS * (MAX_HC + 1) * MAX_DIM)

static uint16_t hidden[MAX_OUT], kv[MAX_KV];
static uint16_t q[MAX_HC * MAX_DIM], k[MAX_HC * MAX_DIM];
static const uint8_t mask[TOKENS] = {1, 0, 255};

static uint32_t random_bits(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

/* bf16 of either sign between 2^-3 and 2, or any bits at all. */
static void fill(uint16_t *to, size_t count, int any)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = random_bits();

		to[i] = any ? (uint16_t)bits
			    : (uint16_t)((bits & 0x8000) | 0x3e00 |
					 (bits & 0x1ff));
	}
}

static void fill_all(int any)
{
	fill(hidden, MAX_OUT, any);
	fill(kv, MAX_KV, any);
	fill(q, MAX_HC * MAX_DIM, any);
	fill(k, MAX_HC * MAX_DIM, any);
}

static struct engram_gate_args contiguous(uint32_t hc, uint32_t dim)
{
	return (struct engram_gate_args){
		.num_tokens = TOKENS,
		.hc_mult = hc,
		.dim = dim,
		.hidden = hidden,
		.hidden_stride = {(int64_t)hc * dim, dim, 1},
		.kv = kv,
		.kv_stride = {((int64_t)hc + 1) * dim, 1},
		.num_kv_tokens = TOKENS,
		.q_weight = q,
		.k_weight = k,
		.q_stride = {dim, 1},
		.k_stride = {dim, 1},
		.eps = 1e-6f,
		.clamp = 1e-6f,
		.out_stride = {(int64_t)hc * dim, dim, 1},
	};
}

static void gate(const struct engram_gate_args *args, uint16_t *out)
{
	struct engram_error err;

	assert_int_equal(engram_cpu_gate(args, out, &err), 0);
}

/* Each shape once with each instruction set: `body` gets the bits of the
 * scalar one, contiguous. */
static void each_shape(int any,
		       void (*body)(const struct engram_gate_args *args,
				    const uint16_t *want))
{
	static uint16_t want[MAX_OUT];

	fill_all(any);
	for (uint32_t hc = 1; hc <= MAX_HC; hc++)
		for (uint32_t dim = 1; dim <= MAX_DIM;
		     dim += dim < 70 ? 1 : 17) {
			struct engram_gate_args args = contiguous(hc, dim);

			engram_cpu_set_isa(ENGRAM_ISA_SCALAR);
			gate(&args, want);
			for (int isa = ENGRAM_ISA_SCALAR;
			     isa <= ENGRAM_ISA_AVX512; isa++)
				if (!engram_cpu_set_isa((enum engram_isa)isa))
					body(&args, want);
		}
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

static size_t out_bytes(const struct engram_gate_args *args)
{
	return sizeof(uint16_t) * TOKENS * args->hc_mult * args->dim;
}

static void check_same(const struct engram_gate_args *args,
		       const uint16_t *want)
{
	static uint16_t out[MAX_OUT];

	gate(args, out);
	assert_memory_equal(out, want, out_bytes(args));
	memset(out, 0, sizeof(out));
	float_env_spoil();
	gate(args, out);
	assert_true(float_env_heal());
	assert_memory_equal(out, want, out_bytes(args));
}

/* NaN, infinities and subnormals among them, and whatever floating-point
 * settings the caller has. */
static void test_same_bits(void **state)
{
	(void)state;
	each_shape(1, check_same);
	each_shape(0, check_same);
}

/* The parts at the end of one mapping each. */
enum { HIDDEN, KV, Q, K, MASK, OUT, NUM_PARTS };
static struct guarded part[NUM_PARTS];

static void *tail_copy(int which, const void *from, size_t bytes)
{
	return memcpy(guard_tail(&part[which], bytes), from, bytes);
}

static void check_ends(const struct engram_gate_args *plain,
		       const uint16_t *want)
{
	struct engram_gate_args args = *plain;
	size_t row = sizeof(uint16_t) * args.dim;
	size_t bytes = out_bytes(&args);
	size_t token = bytes / TOKENS;
	uint16_t *out = guard_tail(&part[OUT], bytes);

	args.hidden = tail_copy(HIDDEN, hidden, bytes);
	args.q_weight = tail_copy(Q, q, args.hc_mult * row);
	args.k_weight = tail_copy(K, k, args.hc_mult * row);
	/* the last token has neither key, value nor mask */
	args.num_kv_tokens = TOKENS - 1;
	args.kv = tail_copy(KV, kv, (TOKENS - 1) * (args.hc_mult + 1) * row);
	gate(&args, out);
	assert_memory_equal(out, want, bytes - token);
	assert_memory_equal(out + (bytes - token) / 2,
			    hidden + (bytes - token) / 2, token);
	args.token_mask = tail_copy(MASK, mask, TOKENS - 1);
	args.mask_stride = 1;
	memset(out, 0xa5, bytes);
	gate(&args, out);
	assert_memory_equal(out, want, token); /* open */
	assert_memory_equal(out + token / 2, hidden + token / 2, 2 * token);
	/* none at all */
	args.num_kv_tokens = 0;
	args.kv = NULL;
	gate(&args, out);
	assert_memory_equal(out, hidden, bytes);
}

static void test_ends(void **state)
{
	(void)state;
	for (int i = 0; i < NUM_PARTS; i++)
		part[i] = guard_alloc(sizeof(kv));
	each_shape(0, check_ends);
	for (int i = 0; i < NUM_PARTS; i++)
		guard_free(&part[i]);
}

/* Last token first, elements first, one key/value for all tokens. */
static void check_strides(const struct engram_gate_args *plain,
			  const uint16_t *want)
{
	static uint16_t out[MAX_OUT], swapped[MAX_OUT], same[MAX_OUT];
	struct engram_gate_args args = *plain;
	uint32_t hc = args.hc_mult, dim = args.dim;
	size_t count = (size_t)hc * dim;

	args.hidden += (TOKENS - 1) * args.hidden_stride[0];
	args.kv += (TOKENS - 1) * args.kv_stride[0];
	args.hidden_stride[0] *= -1;
	args.kv_stride[0] *= -1;
	args.out_stride[0] *= -1;
	gate(&args, out + (TOKENS - 1) * count);
	assert_memory_equal(out, want, out_bytes(&args));

	args = *plain;
	for (size_t t = 0; t < TOKENS; t++)
		for (uint32_t h = 0; h < hc; h++)
			for (uint32_t d = 0; d < dim; d++)
				swapped[(d * hc + h) * TOKENS + t] =
					hidden[(t * hc + h) * dim + d];
	args.hidden = swapped;
	args.hidden_stride[0] = args.out_stride[0] = 1;
	args.hidden_stride[1] = args.out_stride[1] = TOKENS;
	args.hidden_stride[2] = args.out_stride[2] = (int64_t)hc * TOKENS;
	gate(&args, swapped); /* in place */
	for (size_t t = 0; t < TOKENS; t++)
		for (uint32_t h = 0; h < hc; h++)
			for (uint32_t d = 0; d < dim; d++)
				assert_int_equal(
					swapped[(d * hc + h) * TOKENS + t],
					want[(t * hc + h) * dim + d]);

	args = *plain;
	args.kv_stride[0] = args.hidden_stride[0] = 0;
	gate(&args, same);
	for (size_t t = 0; t < TOKENS; t++)
		assert_memory_equal(same + t * count, want, 2 * count);
}

static void test_strides(void **state)
{
	(void)state;
	each_shape(0, check_strides);
}

static void test_refusals(void **state)
{
	const struct engram_gate_args good = contiguous(2, 8);
	const struct {
		size_t offset;
		const char *message;
	} pointers[] = {
		{offsetof(struct engram_gate_args, hidden), "hidden: NULL"},
		{offsetof(struct engram_gate_args, q_weight), "q_weight: NULL"},
		{offsetof(struct engram_gate_args, k_weight), "k_weight: NULL"},
		{offsetof(struct engram_gate_args, kv), "kv: NULL"},
	};
	struct engram_gate_args args;
	struct engram_error err;
	uint16_t out[TOKENS * 2 * 8] = {0xa5a5};

	(void)state;
	for (size_t i = 0; i < sizeof(pointers) / sizeof(*pointers); i++) {
		args = good;
		memset((char *)&args + pointers[i].offset, 0, sizeof(void *));
		assert_int_equal(engram_cpu_gate(&args, out, &err),
				 ENGRAM_EINVAL);
		assert_string_equal(err.message, pointers[i].message);
		assert_string_equal(err.fix, "pass it: the gate needs it for "
					     "every token");
	}
	assert_int_equal(engram_cpu_gate(&good, NULL, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message, "out: NULL");
	args = good;
	args.dim = 0;
	assert_int_equal(engram_cpu_gate(&args, out, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message, "dim: zero");
	args = good;
	args.num_tokens = -1;
	assert_int_equal(engram_cpu_gate(&args, out, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message, "num_tokens: negative");
	assert_int_equal(out[0], 0xa5a5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_strides),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
