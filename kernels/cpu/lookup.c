/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "engram_row_math.h"
#include "engram_segment.h"
#include "rows.h"

const struct engram_row_fns *engram_row_fns(void)
{
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		return &engram_row_fns_avx512;
	case ENGRAM_ISA_AVX2:
		return &engram_row_fns_avx2;
#endif
	default:
		return &engram_row_fns_scalar;
	}
}

/* Stored rows under way at once, to hide the misses of the cache and of the
 * TLB behind each other. */
#define AHEAD 8

/* A stored row; no codes: it counts as zeros. */
struct place {
	const uint8_t *codes, *scales;
};

static struct place place_of(const struct engram_rows *rows, int64_t index)
{
	struct place place = {rows->codes, rows->scales};

	place.codes += index * rows->code_stride_bytes;
	if (place.scales)
		place.scales += index * rows->scale_stride_bytes;
	return place;
}

static void prefetch(const struct engram_rows *rows, const struct place *place)
{
	size_t bytes = rows->dim * (rows->dtype == ENGRAM_BF16 ? 2ul : 1ul);

	for (size_t at = 0; at < bytes; at += 64)
		__builtin_prefetch(place->codes + at);
	__builtin_prefetch(place->codes + bytes - 1);
	if (place->scales)
		__builtin_prefetch(place->scales);
}

/* Where a lookup is in its ids. */
struct cursor {
	int64_t token;
	uint32_t local; /* head */
	uint64_t misses;
};

static struct place next_place(const struct engram_rows *rows,
			       const struct engram_lookup_args *args,
			       struct cursor *cursor)
{
	uint32_t head = args->head_begin + cursor->local;
	int real = engram_row_is_real(args, head);
	int64_t id = real ? engram_row_id(args, cursor->token, head) : -1;
	struct place place = {NULL, NULL};

	if (real && engram_row_is_here(rows, id)) {
		place = place_of(rows, id - rows->row_begin);
		prefetch(rows, &place);
	} else {
		cursor->misses += ENGRAM_MUTATE(54, real, 1);
	}
	if (++cursor->local == args->local_heads) {
		cursor->local = 0;
		cursor->token++;
	}
	return place;
}

enum engram_status engram_cpu_lookup(const struct engram_rows *rows,
				     const struct engram_lookup_args *args,
				     uint16_t *out, struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = engram_check_lookup(rows, args, out, err);
	struct cursor cursor = {0};
	struct place places[AHEAD];
	int64_t count;
	fenv_t env;

	if (status)
		return status;
	engram_float_begin(&env);
	count = args->num_tokens * args->local_heads;
	for (int64_t i = 0; i < count && i < AHEAD; i++)
		places[i] = next_place(rows, args, &cursor);
	for (int64_t i = 0; i < count; i++, out += rows->dim) {
		struct place *place = &places[i % AHEAD];

		if (place->codes)
			fns->decode(rows, place->codes, place->scales, out);
		else
			memset(out, 0, rows->dim * sizeof(*out));
		if (i + AHEAD < count)
			*place = next_place(rows, args, &cursor);
	}
	engram_float_end(&env);
	if (args->misses)
		*args->misses += cursor.misses;
	return ENGRAM_OK;
}

enum engram_status engram_cpu_decode(const struct engram_rows *rows,
				     int64_t num_rows, uint16_t *out,
				     struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status =
		engram_check_decode(rows, num_rows, out, err);
	fenv_t env;

	if (status)
		return status;
	engram_float_begin(&env);
	for (int64_t i = 0; i < num_rows; i++) {
		struct place place = place_of(rows, i);

		fns->decode(rows, place.codes, place.scales,
			    out + i * rows->dim);
	}
	engram_float_end(&env);
	return ENGRAM_OK;
}
