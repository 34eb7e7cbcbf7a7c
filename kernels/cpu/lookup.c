/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engram_row_math.h"
#include "engram_segment.h"
#include "rows.h"

const struct engram_row_fns *engram_row_fns(void)
{
	switch (engram_cpu_isa()) {
	case ENGRAM_ISA_AVX512:
		return &engram_row_fns_avx512;
	case ENGRAM_ISA_AVX2:
		return &engram_row_fns_avx2;
	default:
		return &engram_row_fns_scalar;
	}
}

static enum engram_status invalid(struct engram_error *err, const char *field,
				  const char *what, const char *fix)
{
	engram_error_set(err, ENGRAM_EINVAL, "%s: %s", field, what);
	engram_error_fix(err, "%s", fix);
	engram_error_path(err, "%s", field);
	return ENGRAM_EINVAL;
}

enum engram_status engram_rows_check(const struct engram_rows *rows,
				     struct engram_error *err)
{
	if (rows->dtype != ENGRAM_F8_E4M3 && rows->dtype != ENGRAM_BF16)
		return invalid(err, "dtype", "unknown", "use 1 or 2");
	if (rows->scale_scheme > ENGRAM_SCALE_UE8M0_BLOCK)
		return invalid(err, "scale_scheme", "unknown", "use 0, 1 or 2");
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK &&
	    (!rows->block_size ||
	     (!rows->scales && rows->row_end > rows->row_begin)))
		return invalid(err, "block_size, scales",
			       "blocks without a size or without scales",
			       "pass both, or another scale_scheme");
	if (!rows->dim)
		return invalid(err, "dim", "zero", "give 1 or more");
	if (!rows->codes && rows->row_end > rows->row_begin)
		return invalid(err, "codes", "NULL",
			       "pass the rows, or an empty range of them");
	return ENGRAM_OK;
}

/* The row at `index` from the first, as bf16. */
static void decode_at(const struct engram_rows *rows,
		      const struct engram_row_fns *fns, int64_t index,
		      uint16_t *out)
{
	const uint8_t *codes = rows->codes, *scales = rows->scales;

	codes += index * rows->code_stride_bytes;
	if (scales)
		scales += index * rows->scale_stride_bytes;
	fns->decode(rows, codes, scales, out);
}

enum engram_status engram_cpu_lookup(const struct engram_rows *rows,
				     const struct engram_lookup_args *args,
				     uint16_t *out, struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = engram_rows_check(rows, err);
	uint64_t misses = 0;

	if (status)
		return status;
	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t i = 0; i < args->local_heads; i++) {
			uint32_t head = args->head_begin + i;
			int64_t id = -1;
			int real = engram_row_is_real(args, head);

			if (real)
				id = engram_row_id(args, token, head);
			if (real && engram_row_is_here(rows, id)) {
				decode_at(rows, fns, id - rows->row_begin, out);
			} else {
				memset(out, 0, rows->dim * sizeof(*out));
				misses += ENGRAM_MUTATE(54, real, 1);
			}
			out += rows->dim;
		}
	if (args->misses)
		*args->misses += misses;
	return ENGRAM_OK;
}

enum engram_status engram_cpu_decode(const struct engram_rows *rows,
				     int64_t num_rows, uint16_t *out,
				     struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = engram_rows_check(rows, err);

	if (status)
		return status;
	for (int64_t i = 0; i < num_rows; i++)
		decode_at(rows, fns, i, out + i * rows->dim);
	return ENGRAM_OK;
}
