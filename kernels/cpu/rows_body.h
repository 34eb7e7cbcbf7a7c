/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over a row's elements.  rows_scalar.c, rows_avx2.c and
 * rows_avx512.c compile this for one instruction set each and leave the
 * vectors to the compiler.  The bits are the same because the order of the
 * sums is written down (LANES of them, then a tree) and contraction is off.
 */
#include "engram_row_math.h"
#include "engram_segment.h"
#include "rows.h"

#define LANES 8
#define BLOCK 64 /* elements widened at once; a multiple of LANES */

/* Element by element on any processor; never passed by value, for which the
 * instruction sets have different conventions. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

union block {
	float element[BLOCK];
	lanes vector[BLOCK / LANES];
};

static void decode_codes(const uint8_t *codes, uint32_t count, float scale,
			 uint16_t *out)
{
	for (uint32_t i = 0; i < count; i++)
		out[i] = engram_bf16_of_float(engram_e4m3_to_float(codes[i]) *
					      scale);
}

static void decode_bf16(const uint8_t *codes, uint32_t count, float scale,
			uint16_t *out)
{
	for (uint32_t i = 0; i < count; i++) {
		uint16_t code;

		memcpy(&code, codes + (size_t)i * 2, sizeof(code));
		out[i] = engram_bf16_of_float(engram_bf16_to_float(code) *
					      scale);
	}
}

static void decode_row(const struct engram_rows *rows, const uint8_t *codes,
		       const uint8_t *scales, uint16_t *out)
{
	int wide = rows->dtype == ENGRAM_BF16;
	int blocks = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	uint32_t size = blocks ? rows->block_size : rows->dim;
	float scale = rows->scale_scheme == ENGRAM_SCALE_TENSOR
			      ? rows->tensor_scale
			      : 1.0f;

	for (uint32_t at = 0, b = 0; at < rows->dim; b++) {
		uint32_t left = rows->dim - at;
		uint32_t count = left < size ? left : size;

		if (blocks)
			scale = engram_ue8m0_to_float(
				scales[ENGRAM_MUTATE(49, b, 0)]);
		if (wide)
			decode_bf16(codes + (size_t)at * 2, count, scale,
				    out + at);
		else
			decode_codes(codes + at, count, scale, out + at);
		at += count;
	}
}

/* bf16 -> fp32 [BLOCK], zeros behind the last. */
static void widen(const uint16_t *from, int64_t stride, uint32_t count,
		  float *to)
{
	if (stride == 1 && count == BLOCK) {
		for (int i = 0; i < BLOCK; i++)
			to[i] = engram_bf16_to_float(from[i]);
		return;
	}
	for (uint32_t i = 0; i < BLOCK; i++)
		to[i] = i < count ? engram_bf16_to_float(
					    from[(int64_t)i * stride])
				  : 0.0f;
}

static float sum_lanes(const lanes *sum)
{
	float part[LANES];

	memcpy(part, sum, sizeof(part));
	for (int half = LANES / 2; half; half /= 2)
		for (int i = 0; i < half; i++)
			part[i] += part[i + half];
	return part[0];
}

/* Where the parts of a token's copy begin; key and value are NULL past the
 * last key/value token, whose place may not exist. */
struct gate_parts {
	const uint16_t *hidden, *key, *value, *q, *k;
};

static struct gate_parts find_parts(const struct engram_gate_args *a,
				    int64_t token, uint32_t copy)
{
	struct gate_parts p = {
		.hidden = a->hidden + token * a->hidden_stride[0] +
			  copy * a->hidden_stride[1],
		.q = a->q_weight + copy * a->q_stride[0],
		.k = a->k_weight + copy * a->k_stride[0],
	};
	const uint16_t *kv;

	if (ENGRAM_MUTATE(50, token >= a->num_kv_tokens, 0))
		return p;
	kv = a->kv + token * a->kv_stride[0];
	p.key = kv + (int64_t)copy * a->dim * a->kv_stride[1];
	p.value = kv + (int64_t)ENGRAM_MUTATE(51, a->hc_mult, 0) * a->dim *
			       a->kv_stride[1];
	return p;
}

static void widen_or_zero(const uint16_t *row, int64_t at, int64_t stride,
			  uint32_t count, float *to)
{
	if (row)
		widen(row + at * stride, stride, count, to);
	else
		memset(to, 0, BLOCK * sizeof(*to));
}

static float gate_dot(const struct engram_gate_args *a,
		      const struct gate_parts *p)
{
	lanes hh = {0}, kk = {0}, dots = {0};
	union block h, key, q, k;
	float dot;

	for (uint32_t at = 0; at < a->dim; at += BLOCK) {
		uint32_t n = a->dim - at < BLOCK ? a->dim - at : BLOCK;

		widen(p->hidden + at * a->hidden_stride[2], a->hidden_stride[2],
		      n, h.element);
		widen_or_zero(p->key, at, a->kv_stride[1], n, key.element);
		widen(p->q + at * a->q_stride[1], a->q_stride[1], n, q.element);
		widen(p->k + at * a->k_stride[1], a->k_stride[1], n, k.element);
		for (int i = 0; i < BLOCK / LANES; i++) {
			hh += h.vector[i] * h.vector[i];
			kk += key.vector[i] * key.vector[i];
			dots += h.vector[i] * q.vector[i] *
				ENGRAM_MUTATE(52, k, h).vector[i] *
				key.vector[i];
		}
	}
	dot = sum_lanes(&dots) *
	      (engram_gate_rms(sum_lanes(&hh), a->dim, a->eps) *
	       engram_gate_rms(sum_lanes(&kk), a->dim, a->eps));
	return dot * (1.0f / sqrtf((float)a->dim));
}

static void gate_row(const struct engram_gate_args *a, int64_t token,
		     uint32_t copy, uint16_t *out)
{
	struct gate_parts p = find_parts(a, token, copy);
	float gate = engram_gate_open(gate_dot(a, &p), a->clamp);
	float h[BLOCK], value[BLOCK];
	uint16_t result[BLOCK];

	if (a->token_mask &&
	    (!p.key || ENGRAM_MUTATE(53, !a->token_mask[token * a->mask_stride],
				     a->token_mask[token * a->mask_stride])))
		gate = 0;
	out += token * a->out_stride[0] + copy * a->out_stride[1];
	for (uint32_t at = 0; at < a->dim; at += BLOCK) {
		uint32_t n = a->dim - at < BLOCK ? a->dim - at : BLOCK;

		widen(p.hidden + at * a->hidden_stride[2], a->hidden_stride[2],
		      n, h);
		widen_or_zero(p.value, at, a->kv_stride[1], n, value);
		for (int i = 0; i < BLOCK; i++)
			result[i] =
				engram_bf16_of_float(h[i] + gate * value[i]);
		if (a->out_stride[2] == 1)
			memcpy(out + at, result, n * sizeof(*out));
		else
			for (uint32_t i = 0; i < n; i++)
				out[(int64_t)(at + i) * a->out_stride[2]] =
					result[i];
	}
}
