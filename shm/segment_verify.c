/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "segment.h"

static int chunk_edge(const struct engram_segment_header *h, uint64_t row)
{
	return row % h->chunk_rows == 0 || row == h->rows;
}

static enum engram_status check_range(const struct engram_segment_map *map,
				      uint64_t row_begin, uint64_t row_end,
				      struct engram_error *err)
{
	const struct engram_segment_header *h = map->header;

	if (row_begin >= map->row_begin && row_begin <= row_end &&
	    row_end <= map->row_end && chunk_edge(h, row_begin) &&
	    chunk_edge(h, row_end))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL,
			 "rows %" PRIu64 "..%" PRIu64
			 " are not whole chunks of %" PRIu64
			 " rows in the mapping",
			 row_begin, row_end, h->chunk_rows);
	engram_error_fix(err, "map the whole table and verify whole chunks");
	return ENGRAM_EINVAL;
}

enum engram_status engram_segment_verify(const struct engram_segment_map *map,
					 uint64_t row_begin, uint64_t row_end,
					 uint64_t *bad_chunk,
					 struct engram_error *err)
{
	const struct engram_segment_header *h = map->header;
	const uint64_t *sums = engram_segment_at(h, &h->checksums);
	enum engram_status status = check_range(map, row_begin, row_end, err);
	uint64_t row, count;

	if (status)
		return status;
	for (row = row_begin; row < row_end; row += count) {
		const uint64_t skip = row - map->row_begin;
		const uint64_t chunk = row / h->chunk_rows;
		uint64_t sum;

		count = row_end - row < h->chunk_rows ? row_end - row
						      : h->chunk_rows;
		sum = segment_hash_rows(
			h, (const char *)map->codes + skip * h->code_stride,
			map->scales ? (const char *)map->scales +
					      skip * h->scale_stride
				    : NULL,
			count);
		if (sum == sums[chunk])
			continue;
		if (bad_chunk)
			*bad_chunk = chunk;
		engram_error_set(err, ENGRAM_ECHECKSUM,
				 "table \"%s\" layer %" PRId32 ": rows %" PRIu64
				 "..%" PRIu64 " have checksum %016" PRIx64
				 ", the header says %016" PRIx64,
				 h->table, h->layer_id, row, row + count, sum,
				 sums[chunk]);
		engram_error_fix(err, "unload the table and load it again; if "
				      "it recurs, test the memory");
		return ENGRAM_ECHECKSUM;
	}
	return ENGRAM_OK;
}
