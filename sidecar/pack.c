/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

#include <errno.h>
#include <stdlib.h>

#include "engram_records.h"

/* A quarter of a first-level cache: what is hashed is still there. */
#define TILE_BYTES 8704
/* So many records of any size that is a multiple of 8 end with a cache line. */
#define TILE_ROWS 8

enum engram_status pack_init(struct pack *pack,
			     const struct engram_segment_header *header,
			     struct engram_error *err)
{
	const uint64_t record = engram_segment_record_bytes(header);
	enum engram_status status;

	pack->code_bytes =
		(uint64_t)header->dim * (header->dtype == ENGRAM_BF16 ? 2 : 1);
	pack->scale_bytes = record - pack->code_bytes;
	pack->tile_rows = TILE_BYTES / record / TILE_ROWS * TILE_ROWS;
	if (!pack->tile_rows)
		pack->tile_rows = TILE_ROWS;
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

void pack_begin(struct pack *pack, void *base,
		const struct engram_segment_header *header)
{
	pack->base = base;
	pack->header = header;
	XXH3_64bits_reset(pack->hash);
}

static void put_split(const struct pack *pack, uint64_t row, uint64_t rows,
		      const uint8_t *codes, const uint8_t *scales)
{
	const struct engram_segment_header *h = pack->header;

	engram_cpu_stream(pack->base + h->codes_offset + row * pack->code_bytes,
			  codes, rows * pack->code_bytes);
	if (pack->scale_bytes)
		engram_cpu_stream(pack->base + h->scales_offset +
					  row * pack->scale_bytes,
				  scales, rows * pack->scale_bytes);
}

/* A tile, and what it was made of. */
static void put(const struct pack *pack, uint64_t row, uint64_t rows,
		const uint8_t *codes, const uint8_t *scales)
{
	const uint64_t record = pack->code_bytes + pack->scale_bytes;

	if (!pack->base)
		return;
	if (pack->header->record_layout == ENGRAM_PACKED)
		engram_cpu_stream(pack->base + pack->header->codes_offset +
					  row * record,
				  pack->tile, rows * record);
	else
		put_split(pack, row, rows, codes, scales);
}

/* The source is read once, from wherever the drive has put it; the tile that
 * is made of it is hashed and leaves past the caches. */
void pack_rows(struct pack *pack, uint64_t row, uint64_t rows,
	       const uint8_t *codes, const uint8_t *scales)
{
	const uint64_t record = pack->code_bytes + pack->scale_bytes;
	uint64_t n;

	for (; rows; rows -= n, row += n) {
		n = rows < pack->tile_rows ? rows : pack->tile_rows;
		engram_cpu_interleave(pack->tile, codes, scales, n,
				      pack->code_bytes, pack->scale_bytes);
		XXH3_64bits_update(pack->hash, pack->tile, n * record);
		put(pack, row, n, codes, scales);
		codes += n * pack->code_bytes;
		if (scales)
			scales += n * pack->scale_bytes;
	}
	engram_cpu_stream_end();
}

uint64_t pack_end(struct pack *pack)
{
	return XXH3_64bits_digest(pack->hash);
}
