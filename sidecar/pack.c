/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Records are hashed while the first-level cache has them. */
#define TILE_BYTES 16384

enum engram_status pack_init(struct pack *pack, void *base,
			     const struct engram_segment_header *header,
			     struct engram_error *err)
{
	const uint64_t record = engram_segment_record_bytes(header);
	enum engram_status status;

	pack->base = base;
	pack->header = header;
	pack->code_bytes =
		(uint64_t)header->dim * (header->dtype == ENGRAM_BF16 ? 2 : 1);
	pack->scale_bytes = record - pack->code_bytes;
	pack->tile_rows = TILE_BYTES / record ? TILE_BYTES / record : 1;
	pack->tile = malloc(pack->tile_rows * record);
	pack->hash = XXH3_createState();
	if (pack->tile && pack->hash)
		return ENGRAM_OK;
	pack_free(pack);
	status = engram_error_sys(err, ENOMEM, "packing buffers");
	engram_error_fix(err, "free some memory");
	return status;
}

void pack_free(struct pack *pack)
{
	free(pack->tile);
	XXH3_freeState(pack->hash);
	pack->tile = NULL;
	pack->hash = NULL;
}

void pack_begin(struct pack *pack)
{
	XXH3_64bits_reset(pack->hash);
}

/* Inlined with constants for the common shapes. */
static inline void interleave(uint8_t *out, const uint8_t *codes,
			      const uint8_t *scales, uint64_t rows,
			      uint64_t code_bytes, uint64_t scale_bytes)
{
	uint64_t i;

	for (i = 0; i < rows; i++) {
		memcpy(out, codes, code_bytes);
		memcpy(out + code_bytes, scales, scale_bytes);
		out += code_bytes + scale_bytes;
		codes += code_bytes;
		scales += scale_bytes;
	}
}

static void records(uint8_t *out, const uint8_t *codes, const uint8_t *scales,
		    uint64_t rows, uint64_t code_bytes, uint64_t scale_bytes)
{
	if (!scale_bytes)
		memcpy(out, codes, rows * code_bytes);
	else if (code_bytes == 256 && scale_bytes == 8)
		interleave(out, codes, scales, rows, 256, 8);
	else
		interleave(out, codes, scales, rows, code_bytes, scale_bytes);
}

static void split(struct pack *pack, uint64_t row, uint64_t rows,
		  const uint8_t *codes, const uint8_t *scales)
{
	const struct engram_segment_header *h = pack->header;

	memcpy(pack->base + h->codes_offset + row * pack->code_bytes, codes,
	       rows * pack->code_bytes);
	if (pack->scale_bytes)
		memcpy(pack->base + h->scales_offset + row * pack->scale_bytes,
		       scales, rows * pack->scale_bytes);
}

void pack_rows(struct pack *pack, uint64_t row, uint64_t rows,
	       const uint8_t *codes, const uint8_t *scales)
{
	const struct engram_segment_header *h = pack->header;
	const bool packed = h->record_layout == ENGRAM_PACKED;
	const uint64_t record = pack->code_bytes + pack->scale_bytes;
	uint64_t n;

	for (; rows; rows -= n, row += n) {
		uint8_t *out =
			packed ? pack->base + h->codes_offset + row * record
			       : pack->tile;

		n = rows < pack->tile_rows ? rows : pack->tile_rows;
		records(out, codes, scales, n, pack->code_bytes,
			pack->scale_bytes);
		XXH3_64bits_update(pack->hash, out, n * record);
		if (!packed)
			split(pack, row, n, codes, scales);
		codes += n * pack->code_bytes;
		if (scales)
			scales += n * pack->scale_bytes;
	}
}

uint64_t pack_end(struct pack *pack)
{
	return XXH3_64bits_digest(pack->hash);
}
