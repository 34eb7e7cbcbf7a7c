/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold before the hash may touch anything. */
#include "check.h"
#include "engram_hash_math.h"
#include "hash.h"

static enum engram_status check_primes(const struct engram_hash_params *params,
				       struct engram_error *err)
{
	uint32_t cols;

	cols = (params->max_ngram - params->min_ngram + 1) * params->num_heads;
	for (uint32_t layer = 0; layer < params->num_layers; layer++)
		for (uint32_t col = 0; col < cols; col++) {
			int64_t prime = params->primes[layer][col];

			if (prime >= 1 && prime <= INT32_MAX)
				continue;
			engram_error_set(err, ENGRAM_EINVAL,
					 "layer %u, column %u: prime %lld is "
					 "outside [1, %d]",
					 layer, col, (long long)prime,
					 INT32_MAX);
			engram_error_fix(err, "take the primes from the "
					      "segment or derive them anew");
			engram_error_path(err, "primes[%u][%u]", layer, col);
			return ENGRAM_EINVAL;
		}
	return ENGRAM_OK;
}

static enum engram_status check_bounds(const struct engram_hash_batch *batch,
				       struct engram_error *err)
{
	int32_t before = 0;

	for (int64_t r = 0; r <= batch->num_requests; r++) {
		int32_t bound = batch->query_start_loc[r * batch->query_stride];

		if (bound < before) {
			engram_error_set(err, ENGRAM_EINVAL,
					 "query_start_loc[%lld] is %d, below "
					 "%d",
					 (long long)r, bound, before);
			engram_error_fix(err, "give running totals of the "
					      "requests' tokens, from 0");
			engram_error_path(err, "query_start_loc[%lld]",
					  (long long)r);
			return ENGRAM_EINVAL;
		}
		before = bound;
	}
	return ENGRAM_OK;
}

static int bad_id(const struct engram_hash_params *params, int64_t id)
{
	return id < 0 || id >= params->token_map_len;
}

static enum engram_status check_ids(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    struct engram_error *err)
{
	int64_t live = batch->query_start_loc[batch->num_requests *
					      batch->query_stride];

	/* Tokens past the last request are padding; nobody fills them. */
	if (live > batch->num_tokens)
		live = batch->num_tokens;
	for (int64_t t = 0; t < live; t++) {
		int32_t id = batch->input_ids[t * batch->input_stride];
		int64_t r, first;

		if (!bad_id(params, id) ||
		    (batch->dead_mask &&
		     batch->dead_mask[t * batch->dead_stride]))
			continue;
		r = engram_hash_request(batch, t);
		first = batch->query_start_loc[r * batch->query_stride];
		engram_error_set(err, ENGRAM_EINVAL,
				 "token %lld (number %lld of request %lld): id "
				 "%d is outside [0, %lld)",
				 (long long)t, (long long)(t - first),
				 (long long)r, id,
				 (long long)params->token_map_len);
		engram_error_fix(err, "use the model's own tokenizer, and mark "
				      "tokens that stand for no text as dead");
		engram_error_path(err, "input_ids[%lld]", (long long)t);
		return ENGRAM_EINVAL;
	}
	return ENGRAM_OK;
}

/* Only what the hash would use: requests with tokens, places that an n-gram
 * reaches, positions that exist. */
static enum engram_status check_lookback(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, struct engram_error *err)
{
	int64_t depth = batch->lookback_depth;

	if (depth > params->max_ngram - 1)
		depth = params->max_ngram - 1;
	for (int64_t r = 0; r < batch->num_requests; r++) {
		const int32_t *bounds =
			batch->query_start_loc + r * batch->query_stride;
		int64_t start;

		if (bounds[0] == bounds[batch->query_stride] ||
		    bounds[0] >= batch->num_tokens)
			continue;
		start = engram_hash_chunk_start(batch, r);
		for (int64_t back = 0; back < depth && back < start; back++) {
			int32_t id = engram_hash_lookback(batch, r, back);

			if (id < 0 || !bad_id(params, id) ||
			    engram_hash_lookback_dead(batch, r, back))
				continue;
			engram_error_set(err, ENGRAM_EINVAL,
					 "request %lld, %lld before its first "
					 "token: id %d is outside [0, %lld)",
					 (long long)r, (long long)back + 1, id,
					 (long long)params->token_map_len);
			engram_error_fix(err, "give -1 for what is not known, "
					      "and mark tokens that stand for "
					      "no text as dead");
			engram_error_path(err, "lookback_ids[%lld][%lld]",
					  (long long)r, (long long)back);
			return ENGRAM_EINVAL;
		}
	}
	return ENGRAM_OK;
}

enum engram_status engram_hash_check(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     struct engram_error *err)
{
	enum engram_status status = engram_check_hash(params, batch, err);

	if (!status)
		status = check_primes(params, err);
	if (status || batch->num_tokens == 0)
		return status;
	status = check_bounds(batch, err);
	if (!status)
		status = check_ids(params, batch, err);
	if (!status)
		status = check_lookback(params, batch, err);
	return status;
}
