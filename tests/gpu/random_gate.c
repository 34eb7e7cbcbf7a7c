/* SPDX-License-Identifier: Apache-2.0 */
/* The gate, within its tolerance, and the sequence-parallel rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate_close.h"
#include "shim.h"

#include "random.h"

#define MAX_SHIFT 14
#define BF16_NAN  0x7fc0

/* Rounded towards zero: any bf16 will do. */
static uint16_t bf16_of(double value)
{
	float narrow = (float)value;
	uint32_t bits;

	memcpy(&bits, &narrow, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* bf16, spread like a bell around zero. */
static void make_values(struct view *v, struct rng *rng, int64_t n0, int64_t n1,
			int64_t n2, double size)
{
	view_make(v, rng, sizeof(uint16_t), n0, n1, n2, MAX_SHIFT);
	for (int64_t i = 0; i < n0; i++)
		for (int64_t j = 0; j < n1; j++)
			for (int64_t k = 0; k < n2; k++) {
				double sum = 0;

				for (int n = 0; n < 4; n++)
					sum += (double)rng_in(rng, -1000, 1000);
				*(uint16_t *)view_at(v, i, j, k) =
					bf16_of(sum / 1000 * size);
			}
}

struct gate_case {
	struct engram_gate_args args;
	struct view hidden, kv, q, k, mask, out;
	int in_place;
};

static uint32_t choose_dim(struct rng *rng)
{
	if (rng_percent(rng, 40))
		return (uint32_t)rng_in(rng, 1, 20) * 64;
	if (rng_percent(rng, 30))
		return (uint32_t)rng_in(rng, 1, 100) * 8;
	return rng_percent(rng, 5) ? 5120 : (uint32_t)rng_in(rng, 1, 700);
}

static void choose_shape(struct engram_gate_args *a, struct rng *rng)
{
	static const double eps[] = {1e-6, 1e-6, 1e-20, 0.1};

	a->num_tokens =
		rng_percent(rng, 10) ? rng_in(rng, 30, 90) : rng_in(rng, 0, 6);
	a->hc_mult = (uint32_t)(rng_percent(rng, 50) ? 4 : rng_in(rng, 1, 9));
	a->dim = choose_dim(rng);
	a->num_kv_tokens = a->num_tokens;
	if (rng_percent(rng, 30))
		a->num_kv_tokens = rng_in(rng, 0, a->num_tokens + 2);
	a->eps = (float)RNG_PICK(rng, eps);
	a->clamp = rng_percent(rng, 80) ? 1e-6f : 0.5f;
}

static void strides_of(const struct view *v, int count, int64_t *stride)
{
	for (int d = 0; d < count; d++)
		stride[d] = v->stride[d];
}

static void make_mask(struct gate_case *c, struct rng *rng)
{
	struct engram_gate_args *a = &c->args;

	view_make(&c->mask, rng, 1, a->num_kv_tokens, 1, 1, 0);
	for (int64_t t = 0; t < a->num_kv_tokens; t++)
		if (rng_percent(rng, 40))
			*(uint8_t *)view_at(&c->mask, t, 0, 0) = 0;
	if (rng_percent(rng, 50))
		return; /* none */
	a->token_mask = c->mask.first;
	a->mask_stride = c->mask.stride[0];
}

static void make_gate(struct gate_case *c, struct rng *rng)
{
	struct engram_gate_args *a = &c->args;
	int64_t tokens, hc, dim;

	*c = (struct gate_case){0};
	choose_shape(a, rng);
	tokens = a->num_tokens;
	hc = a->hc_mult;
	dim = a->dim;
	make_values(&c->hidden, rng, tokens, hc, dim,
		    pow(10, (double)rng_in(rng, -8, 3)));
	make_values(&c->kv, rng, a->num_kv_tokens, (hc + 1) * dim, 1,
		    pow(10, (double)rng_in(rng, -8, 3)));
	make_values(&c->q, rng, hc, dim, 1, 1);
	make_values(&c->k, rng, hc, dim, 1, 1);
	if (tokens && rng_percent(rng, 10))
		*(uint16_t *)view_at(&c->hidden, rng_in(rng, 0, tokens - 1), 0,
				     rng_in(rng, 0, dim - 1)) = BF16_NAN;
	make_mask(c, rng);
	c->in_place = rng_percent(rng, 30);
	if (c->in_place)
		view_clone(&c->out, &c->hidden);
	else
		view_make(&c->out, rng, sizeof(uint16_t), tokens, hc, dim,
			  MAX_SHIFT);
	a->kv = (const uint16_t *)c->kv.first;
	a->q_weight = (const uint16_t *)c->q.first;
	a->k_weight = (const uint16_t *)c->k.first;
	strides_of(&c->hidden, 3, a->hidden_stride);
	strides_of(&c->out, 3, a->out_stride);
	strides_of(&c->kv, 2, a->kv_stride);
	strides_of(&c->q, 2, a->q_stride);
	strides_of(&c->k, 2, a->k_stride);
}

static int compare_gate(const struct gate_case *c, const struct view *got,
			const struct view *want, char *why)
{
	const struct engram_gate_args *a = &c->args;

	for (int64_t t = 0; t < a->num_tokens; t++)
		for (int64_t h = 0; h < a->hc_mult; h++)
			for (int64_t d = 0; d < a->dim; d++) {
				uint16_t x = *(uint16_t *)view_at(got, t, h, d);
				uint16_t y =
					*(uint16_t *)view_at(want, t, h, d);
				uint16_t hidden = *(uint16_t *)view_at(
					&c->hidden, t, h, d);

				if (gate_close(x, y, hidden))
					continue;
				snprintf(why, WHY,
					 "token %lld, copy %lld, element %lld "
					 "is %g, not %g (hidden %g)",
					 (long long)t, (long long)h,
					 (long long)d, gate_widen(x),
					 gate_widen(y), gate_widen(hidden));
				return 0;
			}
	return 1;
}

static void say_gate(const struct gate_case *c, char *why)
{
	const struct engram_gate_args *a = &c->args;
	size_t at = strlen(why);

	snprintf(
		why + at, WHY - at,
		"\n  %lld tokens (%lld kv) x %u x %u, strides hidden %lld %lld "
		"%lld, kv %lld %lld, eps %g, clamp %g%s%s",
		(long long)a->num_tokens, (long long)a->num_kv_tokens,
		a->hc_mult, a->dim, (long long)a->hidden_stride[0],
		(long long)a->hidden_stride[1], (long long)a->hidden_stride[2],
		(long long)a->kv_stride[0], (long long)a->kv_stride[1],
		(double)a->eps, (double)a->clamp, a->token_mask ? ", mask" : "",
		c->in_place ? ", in place" : "");
}

/* The argument that the output itself may be. */
static const uint16_t *hidden_for(const struct gate_case *c,
				  const struct view *out)
{
	return (const uint16_t *)(c->in_place ? out : &c->hidden)->first;
}

int random_gate(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct engram_error err;
	struct gate_case c;
	struct view got;
	int ok = 0;

	make_gate(&c, &rng);
	view_clone(&got, &c.out);
	c.args.hidden = hidden_for(&c, &c.out);
	if (engram_cpu_gate(&c.args, (uint16_t *)c.out.first, &err)) {
		snprintf(why, WHY, "CPU: %s", err.message);
		goto out;
	}
	c.args.hidden = hidden_for(&c, &got);
	if (engram_shim_gate(&c.args, (uint16_t *)got.first, &err)) {
		snprintf(why, WHY, "CUDA: %s", err.message);
		goto out;
	}
	ok = compare_gate(&c, &got, &c.out, why) &&
	     !view_gaps_equal(&got, &c.out, why);
out:
	if (!ok)
		say_gate(&c, why);
	view_free(&got);
	view_free(&c.hidden);
	view_free(&c.kv);
	view_free(&c.q);
	view_free(&c.k);
	view_free(&c.mask);
	view_free(&c.out);
	return ok ? 0 : -1;
}

int random_sp_rows(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct engram_sp_rows_args a = {
		.tp_size = (uint32_t)rng_in(&rng, 1, 9),
		.num_tokens = rng_in(&rng, 0, 50),
		.total_heads = (uint32_t)rng_in(&rng, 1, 30),
		.dim = (uint32_t)(rng_percent(&rng, 60)
					  ? rng_in(&rng, 1, 40) * 8
					  : rng_in(&rng, 1, 300)),
	};
	int64_t chunk = (a.num_tokens + a.tp_size - 1) / a.tp_size;
	struct engram_error err;
	size_t in_bytes, bytes;
	uint16_t *gathered, *out, *want;
	int ok = 0;

	a.tp_rank = (uint32_t)rng_in(&rng, 0, a.tp_size - 1);
	a.local_heads = (a.total_heads + a.tp_size - 1) / a.tp_size;
	in_bytes =
		(size_t)(a.tp_size * a.num_tokens) * a.local_heads * a.dim * 2;
	bytes = (size_t)chunk * a.total_heads * a.dim * 2;
	gathered = need(in_bytes);
	rng_fill(&rng, gathered, in_bytes);
	a.gathered = gathered;
	out = memset(need(bytes), 1, bytes);
	want = memset(need(bytes), 2, bytes);
	if (engram_cpu_sp_rows(&a, want, &err) ||
	    engram_shim_sp_rows(&a, out, &err))
		snprintf(why, WHY, "%s", err.message);
	else if (memcmp(out, want, bytes))
		snprintf(why, WHY,
			 "rank %u of %u: %lld tokens, %u + %u heads of %u "
			 "differ",
			 a.tp_rank, a.tp_size, (long long)a.num_tokens,
			 a.local_heads, a.total_heads, a.dim);
	else
		ok = 1;
	free(gathered);
	free(out);
	free(want);
	return ok ? 0 : -1;
}
