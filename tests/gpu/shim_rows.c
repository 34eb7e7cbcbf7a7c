/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup, raw lookup and decode. */
#include "engram_segment.h"
#include "shim_parts.h"

int64_t shim_code_bytes(const struct engram_rows *rows)
{
	return (int64_t)rows->dim * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
}

int64_t shim_scale_bytes(const struct engram_rows *rows)
{
	if (rows->scale_scheme != ENGRAM_SCALE_UE8M0_BLOCK || !rows->block_size)
		return 0;
	return ((int64_t)rows->dim + rows->block_size - 1) / rows->block_size;
}

/* Whether codes and scales are one array of records. */
static int are_packed(const struct engram_rows *rows, struct shim_span codes,
		      struct shim_span scales)
{
	int touch = codes.begin <= scales.end && scales.begin <= codes.end;
	int overlap = codes.begin < scales.end && scales.begin < codes.end;

	return overlap ||
	       (touch && rows->code_stride_bytes == rows->scale_stride_bytes);
}

/* Replaces the pointers by those of copies of `count` rows. */
static void copy_rows(struct shim_call *call, struct engram_rows *rows,
		      int64_t count)
{
	const uint8_t *codes = rows->codes, *scales = rows->scales;
	struct shim_array code_array =
		SHIM_ARRAY2(codes, count, shim_code_bytes(rows),
			    rows->code_stride_bytes, 1);
	struct shim_array scale_array =
		SHIM_ARRAY2(scales, count, shim_scale_bytes(rows),
			    rows->scale_stride_bytes, 1);
	struct shim_span a = shim_span_of(&code_array);
	struct shim_span b = shim_span_of(&scale_array);
	int registered = engram_shim_options.registered;
	int has_codes = a.begin != a.end, has_scales = b.begin != b.end;

	if (has_codes && has_scales && are_packed(rows, a, b)) {
		struct shim_span both = {
			a.begin < b.begin ? a.begin : b.begin,
			a.end > b.end ? a.end : b.end,
		};
		char *device = shim_copy(call, both, registered);

		rows->codes = device + ((const char *)codes - both.begin);
		rows->scales = device + ((const char *)scales - both.begin);
		return;
	}
	/* shim_in for what is empty: it has nothing to copy */
	rows->codes = has_codes ? shim_copy(call, a, registered) +
					  ((const char *)codes - a.begin)
				: shim_in(call, &code_array);
	rows->scales = has_scales ? shim_copy(call, b, registered) +
					    ((const char *)scales - b.begin)
				  : shim_in(call, &scale_array);
}

/* What the kernels may know of a pointer in a descriptor. */
#define ALIGNMENT 16

struct engram_cuda_source shim_source_of(
	struct shim_call *call, const struct engram_rows *rows,
	struct engram_cuda_descriptor *descriptor)
{
	struct engram_cuda_source source = {
		.rows = *rows, .resident = !engram_shim_options.registered};
	struct shim_array array = SHIM_ARRAY1(descriptor, 1, 1);

	copy_rows(call, &source.rows, rows->row_end - rows->row_begin);
	if (!engram_shim_options.descriptor)
		return source;
	descriptor->rows = source.rows;
	descriptor->generation = 1;
	source.descriptor = shim_in(call, &array);
	/* the range and where the rows are must come from the descriptor */
	source.rows.codes =
		(const void *)((uintptr_t)source.rows.codes % ALIGNMENT);
	source.rows.scales =
		(const void *)((uintptr_t)source.rows.scales % ALIGNMENT);
	source.rows.row_begin = source.rows.row_end = 0;
	source.rows.tensor_scale = 0;
	return source;
}

/* Is it a lookup that can go through a ring? */
static int by_ring(const struct engram_lookup_args *args)
{
	return engram_shim_options.ring && args->num_tokens > 0 &&
	       args->local_heads;
}

/* What a client of engramd has: rows by a descriptor, or none. */
static struct engram_cuda_source ring_source(
	struct shim_call *call, const struct engram_rows *rows,
	struct engram_cuda_descriptor *descriptor)
{
	struct engram_cuda_source source = {.rows = *rows};
	struct shim_array array = SHIM_ARRAY1(descriptor, 1, 1);

	source.rows.codes = source.rows.scales = NULL;
	if (engram_shim_options.ring != ENGRAM_SHIM_HOST) {
		source.rows = *rows;
		copy_rows(call, &source.rows, rows->row_end - rows->row_begin);
	}
	descriptor->rows = source.rows;
	descriptor->generation = 1;
	source.descriptor = shim_in(call, &array);
	return source;
}

/* Of the ids only those that this rank may read. */
static struct engram_lookup_args copy_args(
	struct shim_call *call, const struct engram_lookup_args *args)
{
	struct engram_lookup_args copy = *args;
	uint32_t real = 0;
	const int32_t *ids = args->ids;
	struct shim_array array, misses = SHIM_ARRAY1(args->misses, 1, 1);
	int64_t skip = args->head_begin * args->ids_head_stride;
	int32_t *device;

	if (args->head_begin < args->total_heads)
		real = args->total_heads - args->head_begin;
	if (real > args->local_heads)
		real = args->local_heads;
	array = SHIM_ARRAY2(ids ? ids + skip : NULL, args->num_tokens, real,
			    args->ids_token_stride, args->ids_head_stride);
	device = shim_in(call, &array);
	copy.ids = device ? (int32_t *)((uintptr_t)device -
					(uintptr_t)skip * sizeof(*ids))
			  : NULL;
	copy.misses = shim_inout(call, &misses);
	return copy;
}

static int64_t num_out_rows(const struct engram_lookup_args *args)
{
	return args->num_tokens < 0 ? 0 : args->num_tokens * args->local_heads;
}

enum engram_status engram_shim_lookup(const struct engram_rows *rows,
				      const struct engram_lookup_args *args,
				      uint16_t *out, struct engram_error *err)
{
	struct engram_cuda_descriptor descriptor;
	struct engram_cuda_source source;
	struct engram_lookup_args copy;
	struct shim_call call;
	struct shim_array array =
		SHIM_ARRAY1(out, num_out_rows(args) * rows->dim, 1);

	shim_begin(&call);
	source = by_ring(args) ? ring_source(&call, rows, &descriptor)
			       : shim_source_of(&call, rows, &descriptor);
	copy = copy_args(&call, args);
	out = shim_out(&call, &array);
	if (by_ring(args))
		return shim_end(&call,
				shim_ring_lookup(&call, rows, &source, &copy,
						 out, NULL, err),
				err);
	return shim_end(&call,
			engram_cuda_lookup(&source, &copy, out,
					   engram_shim_options.grid,
					   call.stream, err),
			err);
}

enum engram_status engram_shim_lookup_raw(const struct engram_rows *rows,
					  const struct engram_lookup_args *args,
					  const struct engram_raw_out *out,
					  struct engram_error *err)
{
	size_t scales = engram_raw_scale_bytes(
		rows, args->num_tokens, args->local_heads, out->scale_layout);
	struct engram_cuda_descriptor descriptor;
	struct engram_cuda_source source;
	struct engram_lookup_args copy;
	struct engram_raw_out device = *out;
	struct shim_call call;
	struct shim_array array = SHIM_ARRAY1(
		out->codes, num_out_rows(args) * shim_code_bytes(rows), 1);

	shim_begin(&call);
	source = by_ring(args) ? ring_source(&call, rows, &descriptor)
			       : shim_source_of(&call, rows, &descriptor);
	copy = copy_args(&call, args);
	device.codes = shim_out(&call, &array);
	array = SHIM_ARRAY1(out->scales, (int64_t)scales, 1);
	device.scales = shim_out(&call, &array);
	if (by_ring(args))
		return shim_end(&call,
				shim_ring_lookup(&call, rows, &source, &copy,
						 NULL, &device, err),
				err);
	return shim_end(&call,
			engram_cuda_lookup_raw(&source, &copy, &device,
					       engram_shim_options.grid,
					       call.stream, err),
			err);
}

enum engram_status engram_shim_decode(const struct engram_rows *rows,
				      int64_t num_rows, uint16_t *out,
				      struct engram_error *err)
{
	struct engram_rows copy = *rows;
	struct shim_call call;
	struct shim_array array = SHIM_ARRAY1(out, num_rows * rows->dim, 1);

	shim_begin(&call);
	copy_rows(&call, &copy, num_rows);
	out = shim_out(&call, &array);
	return shim_end(
		&call,
		engram_cuda_decode(&copy, num_rows, out, call.stream, err),
		err);
}
