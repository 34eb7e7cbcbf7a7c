/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checksum.h"
#include "segment.h"

#define AT(field, offset)                                                      \
	static_assert(offsetof(struct engram_segment_header, field) == offset, \
		      #field)
AT(magic, 0);
AT(abi_version, 8);
AT(state, 12);
AT(header_checksum, 16);
AT(generation, 24);
AT(data_offset, 32);
AT(data_bytes, 40);
AT(total_bytes, 48);
AT(instance, 56);
AT(table, 120);
AT(layer_id, 184);
AT(layer_index, 188);
AT(record_layout, 192);
AT(dtype, 196);
AT(scale_scheme, 200);
AT(dim, 204);
AT(block_size, 208);
AT(tensor_scale, 212);
AT(rows, 216);
AT(code_stride, 224);
AT(scale_stride, 232);
AT(codes_offset, 240);
AT(scales_offset, 248);
AT(min_ngram, 256);
AT(max_ngram, 260);
AT(num_heads, 264);
AT(num_cols, 268);
AT(pad_id, 272);
AT(raw_pad_id, 276);
AT(compressed_vocab_size, 280);
AT(num_cuts, 284);
AT(prime_seed, 288);
AT(primes, 296);
AT(offsets, 312);
AT(multipliers, 328);
AT(token_map, 344);
AT(checksums, 360);
AT(sources, 376);
AT(chunk_rows, 392);
AT(content_id, 400);
AT(created_ns, 416);
AT(cut_ids, 424);
AT(reserved, 456);
static_assert(sizeof(struct engram_segment_header) == 488, "header size");
static_assert(sizeof(struct engram_segment_source) == 224, "source size");
static_assert(sizeof(struct engram_segment_block) == 16, "block size");
#undef AT

uint64_t segment_code_bytes(const struct engram_segment_header *h)
{
	return (uint64_t)h->dim * (h->dtype == ENGRAM_BF16 ? 2 : 1);
}

uint64_t segment_scale_bytes(const struct engram_segment_header *h)
{
	return engram_segment_record_bytes(h) - segment_code_bytes(h);
}

enum engram_status segment_check_row(const struct engram_segment_header *h,
				     enum engram_status status,
				     struct engram_error *err)
{
	if (h->record_layout != ENGRAM_PACKED &&
	    h->record_layout != ENGRAM_SPLIT)
		return engram_error_set(err, status,
					"record layout %u: must be 1 (packed) "
					"or 2 (split)",
					h->record_layout);
	if (h->dtype != ENGRAM_F8_E4M3 && h->dtype != ENGRAM_BF16)
		return engram_error_set(err, status,
					"dtype %u: must be 1 (fp8 e4m3) or 2 "
					"(bf16)",
					h->dtype);
	if (h->scale_scheme > ENGRAM_SCALE_UE8M0_BLOCK)
		return engram_error_set(err, status,
					"scale scheme %u: must be 0, 1 or 2",
					h->scale_scheme);
	if (!h->dim || h->dim > SEGMENT_DIM_MAX)
		return engram_error_set(err, status, "dim %u: must be 1..%u",
					h->dim, SEGMENT_DIM_MAX);
	if (h->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK &&
	    (!h->block_size || h->dim % h->block_size))
		return engram_error_set(err, status,
					"block size %u does not divide dim %u",
					h->block_size, h->dim);
	return ENGRAM_OK;
}

int segment_place_rows(struct engram_segment_header *h)
{
	const uint64_t codes = segment_code_bytes(h);
	const uint64_t scales = segment_scale_bytes(h);
	const uint64_t record = codes + scales;
	uint64_t end;

	/* Far from overflow in everything below. */
	if (h->rows > (UINT64_C(1) << 62) / record)
		return 0;
	h->codes_offset = h->data_offset;
	if (h->record_layout == ENGRAM_PACKED) {
		h->code_stride = record;
		h->scale_stride = scales ? record : 0;
		h->scales_offset = h->codes_offset + codes;
		end = h->codes_offset + h->rows * record;
	} else {
		h->code_stride = codes;
		h->scale_stride = scales;
		h->scales_offset = round_up(h->codes_offset + h->rows * codes,
					    ENGRAM_SEGMENT_ALIGN);
		end = h->scales_offset + h->rows * scales;
	}
	h->data_bytes = end - h->data_offset;
	h->total_bytes = round_up(end, ENGRAM_SEGMENT_ALIGN);
	h->chunk_rows = ENGRAM_CHUNK_BYTES / record;
	if (!h->chunk_rows)
		h->chunk_rows = 1;
	return 1;
}

uint64_t segment_header_checksum(const struct engram_segment_header *fixed,
				 const void *region)
{
	struct engram_segment_header head = *fixed;
	XXH3_state_t state;

	head.magic = 0;
	head.abi_version = 0;
	head.state = 0;
	head.header_checksum = 0;
	XXH3_64bits_reset(&state);
	XXH3_64bits_update(&state, &head, sizeof(head));
	XXH3_64bits_update(&state, (const char *)region + sizeof(head),
			   fixed->data_offset - sizeof(head));
	return XXH3_64bits_digest(&state);
}

static void hash_block(XXH3_state_t *state,
		       const struct engram_segment_header *h,
		       const struct engram_segment_block *block, size_t element)
{
	XXH3_128bits_update(state, &block->count, sizeof(block->count));
	XXH3_128bits_update(state, engram_segment_at(h, block),
			    block->count * element);
}

/*
 * XXH3-128 of, in this order, little-endian: layer_id, dtype, scale_scheme,
 * dim, block_size, tensor_scale, rows, the fields min_ngram to prime_seed
 * with num_cuts only if there are any and cut_ids behind them, then each of
 * primes, offsets, multipliers, token_map and checksums as its count (uint64)
 * and its elements.
 */
void segment_content_id(const struct engram_segment_header *h, uint64_t out[2])
{
	XXH3_state_t state;
	XXH128_hash_t hash;

	XXH3_128bits_reset(&state);
#define ADD(field) XXH3_128bits_update(&state, &h->field, sizeof(h->field))
	ADD(layer_id);
	ADD(dtype);
	ADD(scale_scheme);
	ADD(dim);
	ADD(block_size);
	ADD(tensor_scale);
	ADD(rows);
	ADD(min_ngram);
	ADD(max_ngram);
	ADD(num_heads);
	ADD(num_cols);
	ADD(pad_id);
	ADD(raw_pad_id);
	ADD(compressed_vocab_size);
	ADD(prime_seed);
	/* Tables without any keep the id they had before there were cuts. */
	if (h->num_cuts) {
		ADD(num_cuts);
		ADD(cut_ids);
	}
#undef ADD
	hash_block(&state, h, &h->primes, sizeof(int64_t));
	hash_block(&state, h, &h->offsets, sizeof(int64_t));
	hash_block(&state, h, &h->multipliers, sizeof(int64_t));
	hash_block(&state, h, &h->token_map, sizeof(int32_t));
	hash_block(&state, h, &h->checksums, sizeof(uint64_t));
	hash = XXH3_128bits_digest(&state);
	out[0] = hash.high64;
	out[1] = hash.low64;
}

uint64_t segment_hash_rows(const struct engram_segment_header *h,
			   const void *codes, const void *scales,
			   uint64_t count)
{
	const uint64_t code_bytes = segment_code_bytes(h);
	const uint64_t scale_bytes = segment_scale_bytes(h);
	const char *code = codes, *scale = scales;
	XXH3_state_t state;
	/* Rows are packed into a buffer that stays in the first-level cache:
	 * XXH3 is slow on many short pieces. */
	char buffer[16384];
	size_t used = 0;

	if (h->record_layout == ENGRAM_PACKED || !scale_bytes)
		return XXH3_64bits(codes, count * (code_bytes + scale_bytes));
	XXH3_64bits_reset(&state);
	for (uint64_t r = 0; r < count; r++) {
		if (used + code_bytes + scale_bytes > sizeof(buffer)) {
			XXH3_64bits_update(&state, buffer, used);
			used = 0;
		}
		if (code_bytes + scale_bytes > sizeof(buffer)) {
			XXH3_64bits_update(&state, code, code_bytes);
			XXH3_64bits_update(&state, scale, scale_bytes);
		} else {
			memcpy(buffer + used, code, code_bytes);
			memcpy(buffer + used + code_bytes, scale, scale_bytes);
			used += code_bytes + scale_bytes;
		}
		code += code_bytes;
		scale += scale_bytes;
	}
	XXH3_64bits_update(&state, buffer, used);
	return XXH3_64bits_digest(&state);
}

uint64_t segment_page_bytes(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return 0;
	if (fs.f_type == HUGETLBFS_MAGIC)
		return (uint64_t)fs.f_bsize;
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

int segment_path(char out[SEGMENT_PATH_MAX],
		 const struct engram_backing *backing, const char *name)
{
	int n = snprintf(out, SEGMENT_PATH_MAX, "%s/%s", backing->dir, name);

	return n > 0 && n < SEGMENT_PATH_MAX;
}
