/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of shm/ share among themselves. */
#ifndef ENGRAM_SHM_SEGMENT_H
#define ENGRAM_SHM_SEGMENT_H

#include "engram_segment.h"

/* Behind the final name while a segment is being written. */
#define SEGMENT_TEMPORARY ".tmp"
#define SEGMENT_PATH_MAX  512

#define SEGMENT_DIM_MAX	    65536u
#define SEGMENT_NGRAM_MAX   16u
#define SEGMENT_HEADS_MAX   256u
#define SEGMENT_VOCAB_MAX   (UINT64_C(1) << 28)
#define SEGMENT_SOURCES_MAX 65536u

static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Bytes of one row's codes, and of its scales. */
uint64_t segment_code_bytes(const struct engram_segment_header *h);
uint64_t segment_scale_bytes(const struct engram_segment_header *h);

/* Are the fields that say where a row is within their limits? */
enum engram_status segment_check_row(const struct engram_segment_header *h,
				     enum engram_status status,
				     struct engram_error *err);

/*
 * Set strides, offsets, sizes and chunk_rows from the row fields,
 * record_layout and data_offset.  The row fields must have been checked;
 * fails only if the sizes overflow.
 */
int segment_place_rows(struct engram_segment_header *h);

static inline uint64_t segment_num_chunks(const struct engram_segment_header *h)
{
	return h->rows / h->chunk_rows + (h->rows % h->chunk_rows != 0);
}

/* XXH3-64 of the header region; `fixed` is a copy of its first bytes. */
uint64_t segment_header_checksum(const struct engram_segment_header *fixed,
				 const void *region);
void segment_content_id(const struct engram_segment_header *h, uint64_t out[2]);

/* XXH3-64 of `count` rows as packed records. */
uint64_t segment_hash_rows(const struct engram_segment_header *h,
			   const void *codes, const void *scales,
			   uint64_t count);

/* Page size that mappings of this file must respect; 0 and errno. */
uint64_t segment_page_bytes(int fd);

/* "<dir>/<name>"; 0 when it does not fit. */
int segment_path(char out[SEGMENT_PATH_MAX],
		 const struct engram_backing *backing, const char *name);

void control_page_name(char out[256], const char *instance);
/* Fills all of the entry but bytes. */
int segment_name_parse(const char *name, struct engram_segment_entry *out);

#endif
