/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "segment_check.h"

static enum engram_status check_hash(const struct engram_segment_header *h,
				     enum engram_status fault,
				     struct engram_error *err)
{
	if (!h->min_ngram || h->min_ngram > h->max_ngram ||
	    h->max_ngram > SEGMENT_NGRAM_MAX)
		return engram_error_set(
			err, fault, "n-grams of %u..%u: must be within 1..%u",
			h->min_ngram, h->max_ngram, SEGMENT_NGRAM_MAX);
	if (!h->num_heads || h->num_heads > SEGMENT_HEADS_MAX)
		return engram_error_set(err, fault, "%u heads: must be 1..%u",
					h->num_heads, SEGMENT_HEADS_MAX);
	if (h->num_cols != (h->max_ngram - h->min_ngram + 1) * h->num_heads)
		return engram_error_set(err, fault,
					"%u columns, but %u n-gram sizes of %u "
					"heads",
					h->num_cols,
					h->max_ngram - h->min_ngram + 1,
					h->num_heads);
	if (h->num_cuts > ENGRAM_SEGMENT_CUTS)
		return engram_error_set(err, fault,
					"%u ids that cut: at most %u",
					h->num_cuts, ENGRAM_SEGMENT_CUTS);
	return ENGRAM_OK;
}

enum engram_status segment_check_fields(const struct engram_segment_header *h,
					enum engram_status fault,
					struct engram_error *err)
{
	enum engram_status status = segment_check_row(h, fault, err);

	if (status)
		return status;
	if (!h->generation)
		return engram_error_set(err, fault,
					"generation 0: they count from 1");
	if (h->layer_id < 0)
		return engram_error_set(err, fault,
					"layer id %" PRId32 " is negative",
					h->layer_id);
	if (!isfinite(h->tensor_scale) || h->tensor_scale <= 0)
		return engram_error_set(err, fault,
					"tensor scale %g: must be positive",
					(double)h->tensor_scale);
	return check_hash(h, fault, err);
}

enum engram_status segment_check_columns(const struct engram_segment_header *h,
					 const int64_t *primes,
					 const int64_t *offsets,
					 enum engram_status fault,
					 struct engram_error *err)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < h->num_cols; i++) {
		if (primes[i] <= 0)
			return engram_error_set(err, fault,
						"prime %u is %" PRId64
						": must be positive",
						i, primes[i]);
		if (offsets[i] < 0 || (uint64_t)offsets[i] != sum)
			return engram_error_set(
				err, fault,
				"offset %u is %" PRId64
				", but the primes before it add up to %" PRIu64,
				i, offsets[i], sum);
		/* No overflow: both are below 2^63, and rows bounds the sum. */
		sum += (uint64_t)primes[i];
		if (sum > h->rows)
			break;
	}
	if (sum != h->rows)
		return engram_error_set(
			err, fault,
			"%" PRIu64 " rows, but the primes add up to %s"
			"%" PRIu64,
			h->rows, i < h->num_cols ? "at least " : "", sum);
	return ENGRAM_OK;
}

static enum engram_status check_string(const char *text, const char *what,
				       int (*valid)(const char *),
				       struct engram_error *err)
{
	if (!memchr(text, '\0', ENGRAM_NAME_MAX + 1))
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"the %s name has no end", what);
	if (!valid(text))
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"\"%s\" is no %s name", text, what);
	return ENGRAM_OK;
}

static enum engram_status check_number(const char *what, uint64_t found,
				       uint64_t expected,
				       struct engram_error *err)
{
	if (found == expected)
		return ENGRAM_OK;
	return engram_error_set(err, ENGRAM_EDAMAGED,
				"%s is %" PRIu64 ", but follows from the "
				"geometry as %" PRIu64,
				what, found, expected);
}

static enum engram_status check_records(const struct engram_segment_header *h,
					struct engram_error *err)
{
	struct engram_segment_header want = *h;
	enum engram_status status = ENGRAM_OK;

	if (!segment_place_rows(&want))
		return engram_error_set(
			err, ENGRAM_EDAMAGED,
			"%" PRIu64 " rows of %" PRIu64 " bytes overflow",
			h->rows, engram_segment_record_bytes(h));
#define SAME(field)                                                         \
	do {                                                                \
		if (!status)                                                \
			status = check_number(#field, h->field, want.field, \
					      err);                         \
	} while (0)
	SAME(code_stride);
	SAME(scale_stride);
	SAME(codes_offset);
	SAME(scales_offset);
	SAME(data_bytes);
	SAME(chunk_rows);
#undef SAME
	if (status)
		return status;
	/* hugetlbfs rounds it up further. */
	if (h->total_bytes < want.total_bytes)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"total_bytes is %" PRIu64
					", but the records end at %" PRIu64,
					h->total_bytes, want.total_bytes);
	return ENGRAM_OK;
}

/* `*end` is where the block before this one ended. */
static enum engram_status check_block(const struct engram_segment_header *h,
				      const struct engram_segment_block *b,
				      const char *what, uint64_t count,
				      size_t element, uint64_t *end,
				      struct engram_error *err)
{
	enum engram_status status;

	if (b->count != count) {
		status = engram_error_set(err, ENGRAM_EDAMAGED,
					  "%s: %" PRIu64
					  " elements where %" PRIu64 " belong",
					  what, b->count, count);
		return status;
	}
	if (!count)
		return ENGRAM_OK;
	if (b->offset % 8)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"%s: offset %" PRIu64
					" is not a multiple of 8",
					what, b->offset);
	if (b->offset < *end)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"%s: offset %" PRIu64
					" lies in what comes before it",
					what, b->offset);
	if (b->offset > h->data_offset ||
	    count > (h->data_offset - b->offset) / element)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"%s: %" PRIu64 " elements at %" PRIu64
					" do not fit a header of %" PRIu64
					" bytes",
					what, count, b->offset, h->data_offset);
	*end = b->offset + count * element;
	return ENGRAM_OK;
}

static enum engram_status check_blocks(const struct engram_segment_header *h,
				       struct engram_error *err)
{
	const struct {
		const struct engram_segment_block *block;
		const char *what;
		uint64_t count;
		size_t element;
	} blocks[] = {
		{&h->primes, "primes", h->num_cols, sizeof(int64_t)},
		{&h->offsets, "offsets", h->num_cols, sizeof(int64_t)},
		{&h->multipliers, "multipliers", h->max_ngram, sizeof(int64_t)},
		{&h->token_map, "token map", h->token_map.count,
		 sizeof(int32_t)},
		{&h->checksums, "checksums", segment_num_chunks(h),
		 sizeof(uint64_t)},
		{&h->sources, "sources", h->sources.count,
		 sizeof(struct engram_segment_source)},
	};
	uint64_t end = sizeof(*h);
	size_t i;

	for (i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		enum engram_status status = check_block(
			h, blocks[i].block, blocks[i].what, blocks[i].count,
			blocks[i].element, &end, err);

		if (status)
			return status;
	}
	return ENGRAM_OK;
}

enum engram_status segment_check_places(const struct engram_segment_header *h,
					struct engram_error *err)
{
	enum engram_status status;

	status = check_string(h->instance, "instance", engram_instance_valid,
			      err);
	if (!status)
		status =
			check_string(h->table, "table", engram_name_valid, err);
	if (!status)
		status = check_records(h, err);
	if (!status)
		status = check_blocks(h, err);
	return status;
}
