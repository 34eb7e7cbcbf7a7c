/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_segment.h"
#include "shim.h"

#include "random_rows.h"

#define MAX_SHIFT 15

static void choose_format(struct rows_case *c, struct rng *rng)
{
	static const uint32_t sizes[] = {8, 16, 32, 32, 32, 64};
	struct engram_rows *r = &c->rows;

	r->dtype = rng_percent(rng, 70) ? ENGRAM_F8_E4M3 : ENGRAM_BF16;
	r->scale_scheme = rng_percent(rng, 60) ? ENGRAM_SCALE_UE8M0_BLOCK
					       : (uint32_t)rng_in(rng, 0, 1);
	if (rng_percent(rng, 60))
		r->dim = (uint32_t)rng_in(rng, 1, 32) * 32;
	else if (rng_percent(rng, 50))
		r->dim = (uint32_t)rng_in(rng, 1, 128) * 8;
	else
		r->dim = (uint32_t)rng_in(rng, 1, 1100);
	r->block_size = rng_percent(rng, 70) ? RNG_PICK(rng, sizes)
					     : (uint32_t)rng_in(rng, 1, 300);
	r->tensor_scale = (float)rng_in(rng, 1, 4000) / 512;
	c->code_bytes = (int64_t)r->dim * (r->dtype == ENGRAM_BF16 ? 2 : 1);
	c->num_scales = r->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK
				? (r->dim - 1) / r->block_size + 1
				: 0;
}

/* `count` places of `bytes`, `stride` from each other, backwards if it is
 * negative: the memory ends with the last byte of the last. */
static uint8_t *place(struct rng *rng, int64_t count, int64_t bytes,
		      int64_t stride, uint8_t **memory)
{
	int64_t way = count ? (count - 1) * llabs(stride) : 0;
	int64_t shift = rng_percent(rng, 40) ? rng_in(rng, 0, MAX_SHIFT) : 0;
	size_t size = (size_t)(count ? way + bytes + shift : 0);

	*memory = need(size);
	rng_fill(rng, *memory, size);
	return *memory + (count ? shift + (stride < 0 ? way : 0) : 0);
}

static int64_t choose_stride(struct rng *rng, int64_t bytes)
{
	if (rng_percent(rng, 30))
		bytes = (bytes + 7) / 8 * 8;
	else if (rng_percent(rng, 20))
		bytes += rng_in(rng, 0, 40);
	return rng_percent(rng, 10) ? -bytes : bytes;
}

static void make_rows(struct rows_case *c, struct rng *rng)
{
	int64_t count = rng_percent(rng, 5) ? 0 : rng_in(rng, 1, 80);
	int64_t record = c->code_bytes + c->num_scales;
	struct engram_rows *r = &c->rows;

	if (rng_percent(rng, 60)) {
		r->code_stride_bytes = choose_stride(rng, record);
		r->scale_stride_bytes = r->code_stride_bytes;
		r->codes = place(rng, count, record, r->code_stride_bytes,
				 &c->memory[0]);
		r->scales = (const uint8_t *)r->codes + c->code_bytes;
	} else {
		r->code_stride_bytes = choose_stride(rng, c->code_bytes);
		r->scale_stride_bytes = choose_stride(rng, c->num_scales);
		r->codes = place(rng, count, c->code_bytes,
				 r->code_stride_bytes, &c->memory[0]);
		r->scales = place(rng, count, c->num_scales,
				  r->scale_stride_bytes, &c->memory[1]);
	}
	if (!c->num_scales)
		r->scales = NULL;
	r->row_begin = rng_percent(rng, 80) ? rng_in(rng, 0, 1000)
					    : INT32_MAX - count - 1;
	r->row_end = r->row_begin + count;
}

static int32_t random_id(struct rng *rng, const struct engram_rows *r)
{
	int64_t last = r->row_end - 1;
	const int32_t outside[] = {
		-1,
		-1,
		(int32_t)(r->row_begin - 1),
		(int32_t)r->row_end,
		INT32_MAX,
		INT32_MIN,
	};

	if (last < r->row_begin || rng_percent(rng, 15))
		return RNG_PICK(rng, outside);
	return (int32_t)rng_in(rng, r->row_begin, last);
}

static void make_args(struct rows_case *c, struct rng *rng)
{
	struct engram_lookup_args *a = &c->args;
	int64_t tokens = rng_percent(rng, 10) ? rng_in(rng, 200, 400)
					      : rng_in(rng, 0, 40);

	a->total_heads = (uint32_t)rng_in(rng, 1, 30);
	a->local_heads = (uint32_t)rng_in(rng, 1, a->total_heads + 3);
	/* sometimes nothing but padded heads */
	a->head_begin = (uint32_t)rng_in(rng, 0, a->total_heads + 1);
	if (rng_percent(rng, 30))
		a->head_begin = 0;
	a->num_tokens = tokens;
	view_make(&c->ids, rng, sizeof(int32_t), tokens, a->total_heads, 1, 0);
	for (int64_t t = 0; t < tokens; t++)
		for (uint32_t h = 0; h < a->total_heads; h++)
			*(int32_t *)view_at(&c->ids, t, h, 0) =
				random_id(rng, &c->rows);
	a->ids = (const int32_t *)c->ids.first;
	a->ids_token_stride = c->ids.stride[0];
	a->ids_head_stride = c->ids.stride[1];
}

static void choose_options(struct rows_case *c, struct rng *rng)
{
	static const uint32_t blocks[] = {0, 0, 1, 2, 3, 4, 7, 64, 132, 5000};

	c->grid.blocks = RNG_PICK(rng, blocks);
	c->grid.hint = rng_percent(rng, 50) ? ENGRAM_CUDA_FOREGROUND
					    : ENGRAM_CUDA_BACKGROUND;
	engram_shim_options.grid = rng_percent(rng, 80) ? &c->grid : NULL;
	engram_shim_options.registered = rng_percent(rng, 40);
	engram_shim_options.descriptor = rng_percent(rng, 40);
}

void rows_case_make(struct rows_case *c, struct rng *rng)
{
	*c = (struct rows_case){0};
	choose_format(c, rng);
	make_rows(c, rng);
	make_args(c, rng);
	choose_options(c, rng);
}

void rows_case_free(struct rows_case *c)
{
	view_free(&c->ids);
	free(c->memory[0]);
	free(c->memory[1]);
	engram_shim_options.grid = NULL;
	engram_shim_options.registered = 0;
	engram_shim_options.descriptor = 0;
}

void rows_case_say(const struct rows_case *c, char *why)
{
	size_t at = strlen(why);

	snprintf(
		why + at, WHY - at,
		"\n  %s rows [%lld, %lld) of %u, dtype %u, scale %u, block %u, "
		"strides %lld and %lld, at %u mod 16; %lld tokens, heads %u + "
		"%u of %u; %u blocks, %s%s%s",
		c->memory[1] ? "split" : "packed", (long long)c->rows.row_begin,
		(long long)c->rows.row_end, c->rows.dim, c->rows.dtype,
		c->rows.scale_scheme, c->rows.block_size,
		(long long)c->rows.code_stride_bytes,
		(long long)c->rows.scale_stride_bytes,
		(unsigned int)((uintptr_t)c->rows.codes % 16),
		(long long)c->args.num_tokens, c->args.head_begin,
		c->args.local_heads, c->args.total_heads, c->grid.blocks,
		c->grid.hint ? "foreground" : "background",
		engram_shim_options.registered ? ", registered" : "",
		engram_shim_options.descriptor ? ", descriptor" : "");
}
