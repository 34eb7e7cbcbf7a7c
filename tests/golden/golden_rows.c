/* SPDX-License-Identifier: Apache-2.0 */
/* lookup and sp_rows: bits must be equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_geometry.h"
#include "engram_kernels.h"
#include "engram_segment.h"
#include "golden.h"

#define MAX_HEADS 64
/* What an output holds beforehand: no result must survive as this. */
#define FILL 0xa5

static int same(const uint16_t *got, const uint16_t *want, int64_t count,
		int64_t rank, char *why)
{
	for (int64_t i = 0; i < count; i++) {
		if (got[i] == want[i])
			continue;
		snprintf(why, GOLDEN_WHY,
			 "rank %lld: element %lld is 0x%04x, not 0x%04x",
			 (long long)rank, (long long)i, got[i], want[i]);
		return 0;
	}
	return 1;
}

static uint16_t *output(const struct golden_case *c, int64_t count)
{
	uint16_t *out = malloc((size_t)count * sizeof(*out) + 1);

	if (!out)
		golden_die(c->path, "out of memory", NULL);
	memset(out, FILL, (size_t)count * sizeof(*out));
	return out;
}

struct lookup_case {
	const uint8_t *codes, *scales;
	uint8_t *packed; /* the same rows, scales behind their codes */
	const int32_t *ids;
	int64_t num_rows, dim, num_scales, num_tokens, heads, tp_size;
	int64_t head_sizes[MAX_HEADS];
};

static void read_lookup(const struct golden_case *c, struct lookup_case *l)
{
	int64_t shape[2], stride;

	l->codes = golden_need(c, "weight", "U8", 2, shape);
	l->num_rows = shape[0];
	l->dim = shape[1];
	l->scales = golden_need(c, "scales", "U8", 2, shape);
	l->num_scales = shape[1];
	l->ids = golden_need(c, "indices", "I32", 2, shape);
	l->num_tokens = shape[0];
	l->heads = shape[1];
	l->tp_size = golden_int(c, "tp_size");
	if ((int64_t)golden_list(c, "head_sizes", l->head_sizes, MAX_HEADS) !=
	    l->heads)
		golden_die(c->path, "head_sizes and indices disagree", NULL);
	stride = l->dim + l->num_scales;
	l->packed = malloc((size_t)(l->num_rows * stride));
	if (!l->packed)
		golden_die(c->path, "out of memory", NULL);
	for (int64_t r = 0; r < l->num_rows; r++) {
		memcpy(l->packed + r * stride, l->codes + r * l->dim,
		       (size_t)l->dim);
		memcpy(l->packed + r * stride + l->dim,
		       l->scales + r * l->num_scales, (size_t)l->num_scales);
	}
}

static struct engram_rows rows_of(const struct lookup_case *l,
				  const struct engram_shard *shard, int packed)
{
	int64_t stride = packed ? l->dim + l->num_scales : l->dim;
	int64_t scale_stride = packed ? stride : l->num_scales;
	const uint8_t *codes = packed ? l->packed : l->codes;
	const uint8_t *scales = packed ? l->packed + l->dim : l->scales;

	return (struct engram_rows){
		.codes = codes + shard->row_begin * stride,
		.scales = scales + shard->row_begin * scale_stride,
		.code_stride_bytes = stride,
		.scale_stride_bytes = scale_stride,
		.row_begin = shard->row_begin,
		.row_end = shard->row_end,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = (uint32_t)l->dim,
		.block_size = (uint32_t)(l->dim / l->num_scales),
		.tensor_scale = 1,
	};
}

static uint64_t count_misses(const struct lookup_case *l,
			     const struct engram_shard *shard)
{
	uint64_t misses = 0;

	for (int64_t t = 0; t < l->num_tokens; t++)
		for (uint32_t h = shard->head_begin; h < shard->head_end; h++) {
			int32_t id = l->ids[t * l->heads + h];

			misses += id < shard->row_begin || id >= shard->row_end;
		}
	return misses;
}

static int run_lookup(const struct golden_case *c, const struct lookup_case *l,
		      int64_t rank, int packed, char *why)
{
	struct engram_lookup_args args = {
		.ids = l->ids,
		.ids_token_stride = l->heads,
		.ids_head_stride = 1,
		.num_tokens = l->num_tokens,
		.total_heads = (uint32_t)l->heads,
	};
	uint64_t misses = 0, want_misses;
	struct engram_shard shard;
	struct engram_rows rows;
	struct engram_error err;
	int64_t shape[3], count;
	const uint16_t *want;
	uint16_t *out;
	char name[64];
	int ok;

	if (engram_shard_of(l->head_sizes, (uint32_t)l->heads, (uint32_t)rank,
			    (uint32_t)l->tp_size, &shard, &err))
		golden_die(c->path, "shard:", err.message);
	snprintf(name, sizeof(name), "expected_rank%lld", (long long)rank);
	want = golden_need(c, name, "I16", 3, shape);
	rows = rows_of(l, &shard, packed);
	args.head_begin = shard.head_begin;
	args.local_heads = shard.local_heads;
	args.misses = &misses;
	count = l->num_tokens * shard.local_heads * l->dim;
	if (shape[0] * shape[1] * shape[2] != count)
		golden_die(c->path, "unexpected shape:", name);
	out = output(c, count);
	if (engram_cpu_lookup(&rows, &args, out, &err)) {
		snprintf(why, GOLDEN_WHY, "%s", err.message);
		ok = 0;
	} else {
		ok = same(out, want, count, rank, why);
	}
	want_misses = count_misses(l, &shard);
	if (ok && misses != want_misses) {
		snprintf(why, GOLDEN_WHY, "rank %lld: %llu misses, not %llu",
			 (long long)rank, (unsigned long long)misses,
			 (unsigned long long)want_misses);
		ok = 0;
	}
	free(out);
	return ok;
}

int golden_lookup(const struct golden_case *c, char *why)
{
	struct lookup_case l;
	int ok = 1;

	read_lookup(c, &l);
	for (int64_t rank = 0; ok && rank < l.tp_size; rank++)
		ok = run_lookup(c, &l, rank, 0, why) &&
		     run_lookup(c, &l, rank, 1, why);
	free(l.packed);
	return ok ? 0 : -1;
}

int golden_sp_rows(const struct golden_case *c, char *why)
{
	int64_t shape[3];
	struct engram_sp_rows_args args = {
		.gathered = golden_need(c, "gathered", "BF16", 3, shape),
		.num_tokens = golden_int(c, "num_tokens"),
		.tp_size = (uint32_t)golden_int(c, "tp_size"),
		.local_heads = (uint32_t)golden_int(c, "local_heads"),
		.total_heads = (uint32_t)golden_int(c, "total_heads"),
		.dim = (uint32_t)golden_int(c, "dim"),
	};
	int ok = 1;

	for (; ok && args.tp_rank < args.tp_size; args.tp_rank++) {
		struct engram_error err;
		const uint16_t *want;
		uint16_t *out;
		int64_t count;
		char name[64];

		snprintf(name, sizeof(name), "expected_rank%u", args.tp_rank);
		want = golden_need(c, name, "BF16", 3, shape);
		count = shape[0] * shape[1] * shape[2];
		out = output(c, count);
		if (engram_cpu_sp_rows(&args, out, &err)) {
			snprintf(why, GOLDEN_WHY, "%s", err.message);
			ok = 0;
		} else {
			ok = same(out, want, count, args.tp_rank, why);
		}
		free(out);
	}
	return ok ? 0 : -1;
}
