/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "engram_segment.h"

enum engram_status engram_invalid(struct engram_error *err, const char *path,
				  const char *what, const char *fix)
{
	engram_error_set(err, ENGRAM_EINVAL, "%s: %s", path, what);
	engram_error_fix(err, "%s", fix);
	engram_error_path(err, "%s", path);
	return ENGRAM_EINVAL;
}

static enum engram_status check_params(const struct engram_hash_params *params,
				       struct engram_error *err)
{
	if (params->max_ngram < 1 || params->max_ngram > ENGRAM_HASH_MAX_NGRAM)
		return engram_invalid(err, "max_ngram", "out of range",
				      "give a value from 1 to 16");
	if (params->min_ngram < 1 || params->min_ngram > params->max_ngram)
		return engram_invalid(err, "min_ngram", "out of range",
				      "give a value from 1 to max_ngram");
	if (params->num_cuts > ENGRAM_CUTS_MAX)
		return engram_invalid(err, "num_cuts", "out of range",
				      "give at most 8");
	if (params->num_heads < 1 || params->num_heads > 65536)
		return engram_invalid(err, "num_heads", "out of range",
				      "give a value from 1 to 65536");
	return ENGRAM_OK;
}

static enum engram_status check_shape(const struct engram_hash_batch *batch,
				      struct engram_error *err)
{
	if (batch->num_requests < 1)
		return engram_invalid(
			err, "num_requests", "tokens that belong to no request",
			"describe each request in query_start_loc");
	if (!batch->input_ids || !batch->positions || !batch->query_start_loc)
		return engram_invalid(err,
				      "input_ids, positions, query_start_loc",
				      "one of them is NULL", "pass all three");
	if (batch->lookback_depth < 0 ||
	    (batch->lookback_depth > 0 && !batch->lookback_ids))
		return engram_invalid(err, "lookback_depth",
				      "there is no such look-back window",
				      "pass lookback_ids, or a depth of 0");
	if (!batch->slot_cache)
		return ENGRAM_OK;
	if (!batch->block_table || batch->num_slots < 1 ||
	    batch->num_block_rows < 1 || batch->max_blocks < 1 ||
	    batch->max_blocks > INT32_MAX || batch->block_size < 1 ||
	    batch->block_size > INT32_MAX)
		return engram_invalid(
			err, "slot_cache",
			"the block table or the cache has no size",
			"set block_table, num_slots, num_block_rows, "
			"max_blocks and block_size, or slot_cache to "
			"NULL");
	return ENGRAM_OK;
}

enum engram_status engram_check_hash(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     struct engram_error *err)
{
	enum engram_status status = check_params(params, err);

	if (status || batch->num_tokens == 0)
		return status;
	if (batch->num_tokens < 0)
		return engram_invalid(err, "num_tokens", "negative",
				      "give 0 or more");
	return check_shape(batch, err);
}

enum engram_status engram_check_slots(const struct engram_hash_batch *batch,
				      struct engram_error *err)
{
	if (batch->slot_mapping)
		return ENGRAM_OK;
	return engram_invalid(err, "slot_mapping",
			      "a slot cache without a slot mapping",
			      "set slot_mapping, or slot_cache to NULL");
}

/* What is wrong with the description of stored rows, of which `needed` are
 * read at most. */
static enum engram_status check_rows(const struct engram_rows *rows,
				     int64_t needed, struct engram_error *err)
{
	int blocks = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;

	if (rows->dtype != ENGRAM_F8_E4M3 && rows->dtype != ENGRAM_BF16)
		return engram_invalid(err, "dtype", "unknown", "use 1 or 2");
	if (rows->scale_scheme > ENGRAM_SCALE_UE8M0_BLOCK)
		return engram_invalid(err, "scale_scheme", "unknown",
				      "use 0, 1 or 2");
	if (blocks && (!rows->block_size || (!rows->scales && needed > 0)))
		return engram_invalid(err, "block_size, scales",
				      "blocks without a size or without scales",
				      "pass both, or another scale_scheme");
	if (!rows->dim)
		return engram_invalid(err, "dim", "zero", "give 1 or more");
	if (!rows->codes && needed > 0)
		return engram_invalid(
			err, "codes", "NULL",
			"pass the rows, or an empty range of them");
	return ENGRAM_OK;
}

/* Whether the output of a lookup has more bytes than fit. */
static int too_many(int64_t num_rows, uint32_t heads, uint32_t dim)
{
	int64_t bytes = num_rows;

	return __builtin_mul_overflow(bytes, (int64_t)heads, &bytes) ||
	       __builtin_mul_overflow(bytes, (int64_t)dim * 2, &bytes);
}

enum engram_status engram_check_lookup(const struct engram_rows *rows,
				       const struct engram_lookup_args *args,
				       const uint16_t *out,
				       struct engram_error *err)
{
	enum engram_status status =
		check_rows(rows, rows->row_end - rows->row_begin, err);

	if (status)
		return status;
	if (args->num_tokens < 0)
		return engram_invalid(err, "num_tokens", "negative",
				      "give 0 or more");
	if (args->local_heads > UINT32_MAX - args->head_begin)
		return engram_invalid(err, "head_begin, local_heads",
				      "heads past 2^32",
				      "give the heads of one rank");
	if (!args->num_tokens || !args->local_heads)
		return ENGRAM_OK;
	if (too_many(args->num_tokens, args->local_heads, rows->dim))
		return engram_invalid(err, "num_tokens",
				      "more rows than memory can hold",
				      "pass fewer tokens at once");
	if (!args->ids && args->head_begin < args->total_heads)
		return engram_invalid(err, "ids", "NULL",
				      "pass an id for each token and head");
	if (!out)
		return engram_invalid(
			err, "out", "NULL",
			"pass room for [num_tokens, local_heads, dim]");
	return ENGRAM_OK;
}

enum engram_status engram_check_decode(const struct engram_rows *rows,
				       int64_t num_rows, const uint16_t *out,
				       struct engram_error *err)
{
	enum engram_status status = check_rows(rows, num_rows, err);

	if (status)
		return status;
	if (num_rows < 0)
		return engram_invalid(err, "num_rows", "negative",
				      "give 0 or more");
	if (too_many(num_rows, 1, rows->dim))
		return engram_invalid(err, "num_rows",
				      "more than memory can hold",
				      "pass fewer rows at once");
	if (!out && num_rows)
		return engram_invalid(err, "out", "NULL",
				      "pass room for [num_rows, dim]");
	return ENGRAM_OK;
}

enum engram_status engram_check_layout(const struct engram_raw_out *out,
				       struct engram_error *err)
{
	if ((unsigned int)out->scale_layout <= ENGRAM_SCALES_F8_128X4)
		return ENGRAM_OK;
	return engram_invalid(err, "scale_layout", "unknown", "use 0 or 1");
}

enum engram_status engram_check_raw(const struct engram_rows *rows,
				    const struct engram_lookup_args *args,
				    const struct engram_raw_out *out,
				    struct engram_error *err)
{
	enum engram_status status = engram_check_lookup(
		rows, args, (const uint16_t *)out->codes, err);

	return status ? status : engram_check_layout(out, err);
}

enum engram_status engram_check_gate(const struct engram_gate_args *args,
				     const uint16_t *out,
				     struct engram_error *err)
{
	const char *field = NULL;

	if (args->num_tokens < 0)
		return engram_invalid(err, "num_tokens", "negative",
				      "give 0 or more");
	if (!args->dim)
		return engram_invalid(err, "dim", "zero", "give 1 or more");
	if (!args->num_tokens || !args->hc_mult)
		return ENGRAM_OK; /* nothing is read */
	if (!args->hidden)
		field = "hidden";
	else if (!args->q_weight)
		field = "q_weight";
	else if (!args->k_weight)
		field = "k_weight";
	else if (args->num_kv_tokens > 0 && !args->kv)
		field = "kv";
	else if (!out)
		field = "out";
	return field ? engram_invalid(
			       err, field, "NULL",
			       "pass it: the gate needs it for every token")
		     : ENGRAM_OK;
}
