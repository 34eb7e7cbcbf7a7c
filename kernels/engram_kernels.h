/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The computations of an Engram layer.  The argument structures are shared
 * by the CPU backend (below) and the CUDA backend, which takes the same
 * structures with device pointers and a stream.
 *
 * Strides are in elements unless a name says bytes; they may be 0 or
 * negative as long as what they address is there.  All functions are
 * thread-safe on distinct outputs, allocate nothing, keep no pointer, and
 * accept zero tokens.  On an error nothing has been written.
 *
 * bf16 is passed as its uint16_t bits.
 */
#ifndef ENGRAM_KERNELS_H
#define ENGRAM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

/* What the slot cache holds for a token that takes part in no n-gram. */
#define ENGRAM_DEAD_ID (-1)
/* Kinds of tokens that n-grams do not reach across. */
#define ENGRAM_CUTS_MAX 8

/* ---- hash: token ids -> row numbers ---- */

/* Constant for a table; usually views into its segments. */
struct engram_hash_params {
	uint32_t num_layers;
	uint32_t min_ngram; /* columns start at this n-gram size; 2 */
	uint32_t max_ngram;
	uint32_t num_heads;
	const int64_t *const *multipliers; /* [num_layers] -> [max_ngram] */
	const int64_t *const *primes;	   /* [num_layers] -> [cols] */
	const int64_t *const *offsets;	   /* [num_layers] -> [cols] */
	const int32_t *token_map; /* raw id -> compressed id; NULL: identity */
	int64_t token_map_len;	  /* raw ids are below this, mapped or not */
	int32_t pad_id;		  /* compressed */
	/* Compressed ids that end a text.  To the tokens after it, one of
	 * them is what a dead token is: itself and everything older are the
	 * pad id.  Its own n-grams are those of any token. */
	uint32_t num_cuts; /* 0..ENGRAM_CUTS_MAX */
	int32_t cut_ids[ENGRAM_CUTS_MAX];
};

/*
 * A batch of requests, flattened.  Request r has the tokens
 * [query_start_loc[r], query_start_loc[r + 1]); repeated bounds at the end
 * are padding rows.  Tokens at or past the last bound are padding too: they
 * are hashed as if they were the last request's, ids out of range count as
 * the pad id, and what comes out for them means nothing.
 *
 * The token `shift` places before a token comes from, in this order: the
 * batch itself, the look-back window, the slot cache; with no slot cache, the
 * pad id.  A dead token, or a place before position 0, blocks itself and
 * everything older.
 */
struct engram_hash_batch {
	int64_t num_tokens;
	const int32_t *input_ids; /* [num_tokens] */
	int64_t input_stride;
	const uint8_t *dead_mask; /* [num_tokens], non-zero = dead, or NULL */
	int64_t dead_stride;
	const int64_t *positions; /* [num_tokens] in their request */
	int64_t position_stride;
	const int32_t *query_start_loc; /* [num_requests + 1] */
	int64_t query_stride;
	int64_t num_requests;

	/* look-back window: the tokens just before each request's first one,
	 * newest first; -1 = unknown */
	const int32_t *lookback_ids; /* [num_requests, lookback_depth] */
	int64_t lookback_row_stride, lookback_col_stride;
	const uint8_t *lookback_dead; /* likewise, or NULL */
	int64_t lookback_dead_row_stride, lookback_dead_col_stride;
	int64_t lookback_depth;

	/* slot cache: compressed ids (or ENGRAM_DEAD_ID) by KV slot; NULL for
	 * none */
	int32_t *slot_cache; /* [num_slots] */
	int64_t num_slots;
	const int64_t *slot_mapping; /* [num_tokens], < 0 = write nothing */
	int64_t slot_stride;
	const int32_t *block_table; /* [num_block_rows, max_blocks] */
	int64_t block_row_stride, block_col_stride;
	int64_t num_block_rows, max_blocks, block_size;
};

/*
 * out[num_tokens, num_layers, cols] int32, contiguous;
 * cols = (max_ngram - min_ngram + 1) * num_heads.
 *
 *	rolling_s = XOR over k = 0..s of multiplier[k] * id[token - k]
 *	out[(s + 1 - min_ngram) * num_heads + h] =
 *		rolling_s mod prime + offset	for n-grams of s + 1 tokens
 *
 * ENGRAM_EINVAL names a live token id outside [0, token_map_len) and its
 * place; so do bounds that fall and a slot cache without a block table.  The
 * id of a dead token is not looked at.  Blocks and slots that a table names
 * are clamped to what there is.  Reads the slot cache, never writes it.
 */
enum engram_status engram_cpu_hash(const struct engram_hash_params *params,
				   const struct engram_hash_batch *batch,
				   int32_t *out, struct engram_error *err);

/* Write the batch's compressed ids (dead ones as ENGRAM_DEAD_ID) to their
 * slots; without a slot cache, do nothing.  Call it before engram_cpu_hash of
 * the same batch, whose errors it has too.  ENGRAM_EINVAL for a slot of
 * num_slots or more. */
enum engram_status engram_cpu_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, struct engram_error *err);

/* ---- lookup: row numbers -> bf16 rows ---- */

/* Stored rows, wherever they are: a mapped segment, a rank's slice of it, a
 * staging buffer.  Values of the dtype and scale fields: engram_segment.h. */
struct engram_rows {
	const void *codes; /* of row_begin */
	const void *scales;
	int64_t code_stride_bytes, scale_stride_bytes;
	int64_t row_begin, row_end;
	uint32_t dtype;	       /* 1 fp8 e4m3fn, 2 bf16 */
	uint32_t scale_scheme; /* 0 none, 1 per tensor, 2 ue8m0 per block */
	uint32_t dim;
	uint32_t block_size;
	float tensor_scale;
};

struct engram_lookup_args {
	const int32_t *ids; /* [num_tokens, total_heads] */
	int64_t ids_token_stride, ids_head_stride;
	int64_t num_tokens;
	/* This rank's heads are [head_begin, head_begin + local_heads); those
	 * at or past total_heads are padding: zeros, ids not read. */
	uint32_t head_begin, local_heads, total_heads;
	uint64_t *misses; /* += ids of real heads outside the rows; or NULL */
};

/*
 * out[num_tokens, local_heads, dim] bf16, contiguous:
 * round-to-nearest-even of code * scale.  The ue8m0 byte e is the fp32 with
 * bits e << 23: 2^(e - 127), 0.0 for 0 and infinity for 255.  Ids outside
 * [row_begin, row_end), -1 among them, give zeros and are counted.
 */
enum engram_status engram_cpu_lookup(const struct engram_rows *rows,
				     const struct engram_lookup_args *args,
				     uint16_t *out, struct engram_error *err);

/* Contiguous packed rows -> bf16 [num_rows, dim], as lookup does one row. */
enum engram_status engram_cpu_decode(const struct engram_rows *rows,
				     int64_t num_rows, uint16_t *out,
				     struct engram_error *err);

/*
 * The rows as stored, for engines that multiply fp8 with block scales: half
 * the bytes of bf16 and no decoding.  With C = local_heads * scales of a row,
 * one matrix row a token:
 *	codes	[num_tokens, local_heads, code bytes of a row], contiguous
 *	scales	ENGRAM_SCALES_PLAIN: [num_tokens, C];
 *		ENGRAM_SCALES_F8_128X4: as cuBLASLt wants them for
 *		VEC32_UE8M0, in tiles of 128 tokens x 4 scales, the scale of
 *		token t and column c at byte
 *			(t / 128 * ceil(C / 4) + c / 4) * 512
 *			+ t % 32 * 16 + t % 128 / 32 * 4 + c % 4
 *		of engram_raw_scale_bytes; what fills a tile up is 0.
 * Rows that are not there have codes and scales 0.  For scale schemes
 * without blocks `scales` is not written.
 */
enum engram_scale_layout {
	ENGRAM_SCALES_PLAIN = 0,
	ENGRAM_SCALES_F8_128X4 = 1
};
struct engram_raw_out {
	uint8_t *codes;
	uint8_t *scales; /* NULL: not wanted */
	enum engram_scale_layout scale_layout;
};
/* 0 without block scales. */
size_t engram_raw_scale_bytes(const struct engram_rows *rows,
			      int64_t num_tokens, uint32_t local_heads,
			      enum engram_scale_layout layout);
enum engram_status engram_cpu_lookup_raw(const struct engram_rows *rows,
					 const struct engram_lookup_args *args,
					 const struct engram_raw_out *out,
					 struct engram_error *err);

/* ---- gate: rows, projected to key and value, into the residual stream ---- */

struct engram_gate_args {
	int64_t num_tokens;
	uint32_t hc_mult;
	uint32_t dim;
	const uint16_t *hidden; /* bf16 [num_tokens, hc_mult, dim] */
	int64_t hidden_stride[3];
	/* hc_mult keys, then one value, each of dim; only tokens below
	 * num_kv_tokens are read, the rest count as zeros */
	const uint16_t *kv; /* bf16 [num_kv_tokens, (hc_mult + 1) * dim] */
	int64_t kv_stride[2];
	int64_t num_kv_tokens;
	const uint16_t *q_weight, *k_weight; /* bf16 [hc_mult, dim] */
	int64_t q_stride[2], k_stride[2];
	const uint8_t *token_mask; /* [num_kv_tokens], 0 shuts the gate; or
				    * NULL.  The opposite of dead_mask. */
	int64_t mask_stride;
	float eps;   /* of the RMS norms */
	float clamp; /* 1e-6: |dot| is at least this under the root */
	int64_t out_stride[3];
};

/*
 * For each token and copy, in fp32:
 *	dot  = sum(h * q * k * key) * rms(h) * rms(key) / sqrt(dim)
 *	gate = sigmoid(sign(dot) * sqrt(max(|dot|, clamp)))
 *	out  = h + gate * value
 * with rms(x) = 1 / sqrt(mean(x^2) + eps).  out bf16
 * [num_tokens, hc_mult, dim]; may be `hidden` itself.
 */
enum engram_status engram_cpu_gate(const struct engram_gate_args *args,
				   uint16_t *out, struct engram_error *err);

/* ---- sequence-parallel rows ---- */

/*
 * After an all-gather of every rank's lookup result: take this rank's share
 * of the tokens and put the heads in order.
 *	gathered [tp_size * num_tokens, local_heads, dim] bf16, contiguous
 *	out      [chunk, total_heads, dim], chunk = ceil(num_tokens / tp_size)
 * Tokens past num_tokens give zeros; padded heads are dropped.
 */
struct engram_sp_rows_args {
	const uint16_t *gathered;
	int64_t num_tokens;
	uint32_t tp_size, tp_rank;
	uint32_t local_heads, total_heads;
	uint32_t dim;
};
enum engram_status engram_cpu_sp_rows(const struct engram_sp_rows_args *args,
				      uint16_t *out, struct engram_error *err);

/* ---- which instructions the CPU backend uses ---- */

enum engram_isa {
	ENGRAM_ISA_AUTO = 0, /* the best the processor has */
	ENGRAM_ISA_SCALAR = 1,
	ENGRAM_ISA_AVX2 = 2,
	ENGRAM_ISA_AVX512 = 3
};

/* The one in use: set by engram_cpu_set_isa, else $ENGRAM_ISA (scalar, avx2,
 * avx512), else the best.  All give identical bits. */
enum engram_isa engram_cpu_isa(void);
/* For tests and benchmarks; ENGRAM_EUNSUPPORTED if the processor lacks it.
 * Takes effect for calls that start afterwards, process-wide. */
enum engram_status engram_cpu_set_isa(enum engram_isa isa);
const char *engram_isa_name(enum engram_isa isa);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
