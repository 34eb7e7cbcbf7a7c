/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdlib.h>

#include "engram_geometry.h"
#include "engram_math.h"

#define MAX_LAYERS 64
#define MAX_NGRAM  16
#define MAX_HEADS  256
/* The layer's id times this seeds its multipliers. */
#define SEED_STEP 10007
/* Row numbers are int32, so the last one is at most INT32_MAX. */
#define MAX_ROWS ((int64_t)INT32_MAX + 1)

static enum engram_status out_of_range(struct engram_error *err,
				       const char *field, int64_t value,
				       int64_t low, int64_t high)
{
	engram_error_set(err, ENGRAM_EINVAL, "%s is %lld", field,
			 (long long)value);
	engram_error_fix(err, "give a value from %lld to %lld", (long long)low,
			 (long long)high);
	engram_error_path(err, "%s", field);
	return ENGRAM_EINVAL;
}

static enum engram_status check_layer_ids(
	const struct engram_geometry_config *config, struct engram_error *err)
{
	for (uint32_t i = 0; i < config->num_layers; i++) {
		int32_t id = config->layer_ids[i];

		if (id < 0)
			return out_of_range(err, "layer_ids", id, 0, INT32_MAX);
		for (uint32_t j = 0; j < i; j++) {
			if (config->layer_ids[j] != id)
				continue;
			engram_error_set(err, ENGRAM_EINVAL,
					 "layer_ids names layer %d twice", id);
			engram_error_fix(err, "name each layer once");
			engram_error_path(err, "layer_ids");
			return ENGRAM_EINVAL;
		}
	}
	return ENGRAM_OK;
}

static enum engram_status check_config(
	const struct engram_geometry_config *config, struct engram_error *err)
{
	if (config->num_layers < 1 || config->num_layers > MAX_LAYERS)
		return out_of_range(err, "num_layers", config->num_layers, 1,
				    MAX_LAYERS);
	if (config->max_ngram < 2 || config->max_ngram > MAX_NGRAM)
		return out_of_range(err, "max_ngram", config->max_ngram, 2,
				    MAX_NGRAM);
	if (config->num_heads < 1 || config->num_heads > MAX_HEADS)
		return out_of_range(err, "num_heads", config->num_heads, 1,
				    MAX_HEADS);
	if (config->min_ngram > config->max_ngram)
		return out_of_range(err, "min_ngram", config->min_ngram, 1,
				    config->max_ngram);
	if (!config->primes &&
	    (config->vocab_size < 1 || config->vocab_size > INT32_MAX))
		return out_of_range(err, "vocab_size", config->vocab_size, 1,
				    INT32_MAX);
	if (config->compressed_vocab_size < 1)
		return out_of_range(err, "compressed_vocab_size",
				    config->compressed_vocab_size, 1,
				    UINT32_MAX);
	return check_layer_ids(config, err);
}

static enum engram_status allocate(const struct engram_geometry_config *config,
				   struct engram_geometry **out,
				   struct engram_error *err)
{
	struct engram_geometry *g = calloc(1, sizeof(*g));
	size_t layers = config->num_layers;
	uint32_t first = config->min_ngram ? config->min_ngram : 2;
	size_t cols =
		(size_t)(config->max_ngram - first + 1) * config->num_heads;

	if (g) {
		g->min_ngram = first;
		g->num_layers = config->num_layers;
		g->max_ngram = config->max_ngram;
		g->num_heads = config->num_heads;
		g->num_cols = (uint32_t)cols;
		g->layer_ids = calloc(layers, sizeof(*g->layer_ids));
		g->primes = calloc(layers * cols, sizeof(*g->primes));
		g->offsets = calloc(layers * cols, sizeof(*g->offsets));
		g->multipliers = calloc(layers * config->max_ngram,
					sizeof(*g->multipliers));
		g->rows = calloc(layers, sizeof(*g->rows));
	}
	if (!g || !g->layer_ids || !g->primes || !g->offsets ||
	    !g->multipliers || !g->rows) {
		engram_geometry_free(g);
		engram_error_set(err, ENGRAM_ENOMEM,
				 "no memory for a geometry of %zu layers and "
				 "%zu columns",
				 layers, cols);
		engram_error_fix(err, "free some memory or raise its limit");
		return ENGRAM_ENOMEM;
	}
	*out = g;
	return ENGRAM_OK;
}

static enum engram_status too_many_rows(const struct engram_geometry *g,
					uint32_t layer,
					struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "layer %d would have more than %lld rows",
			 g->layer_ids[layer], (long long)MAX_ROWS);
	engram_error_fix(err, "lower vocab_size, num_heads or max_ngram: row "
			      "numbers are int32");
	return ENGRAM_EGEOMETRY;
}

/*
 * Every n-gram size of every layer searches from the same start for primes
 * that nobody has yet.  So together they take all primes from there on, in
 * order, and the set of those taken is just the last one.
 */
static enum engram_status place_heads(struct engram_geometry *g,
				      uint32_t vocab_size,
				      struct engram_error *err)
{
	uint32_t candidate = ENGRAM_MUTATE(17, vocab_size, vocab_size + 1);
	size_t at = 0;

	for (uint32_t layer = 0; layer < g->num_layers; layer++) {
		int64_t rows = 0;

		candidate = ENGRAM_MUTATE(15, candidate, vocab_size);
		for (uint32_t col = 0; col < g->num_cols; col++, at++) {
			while (!engram_is_prime(candidate))
				candidate++;
			g->primes[at] = candidate;
			g->offsets[at] =
				ENGRAM_MUTATE(16, rows, rows + candidate);
			rows += candidate++;
			if (rows > MAX_ROWS)
				return too_many_rows(g, layer, err);
		}
		g->rows[layer] = rows;
	}
	return ENGRAM_OK;
}

/* The same with the moduli that a model stores. */
static enum engram_status take_heads(struct engram_geometry *g,
				     const int64_t *primes,
				     struct engram_error *err)
{
	size_t at = 0;

	for (uint32_t layer = 0; layer < g->num_layers; layer++) {
		int64_t rows = 0;

		for (uint32_t col = 0; col < g->num_cols; col++, at++) {
			if (primes[at] < 1 || primes[at] > INT32_MAX)
				return out_of_range(err, "primes", primes[at],
						    1, INT32_MAX);
			g->primes[at] = primes[at];
			g->offsets[at] = rows;
			rows += primes[at];
			if (rows > MAX_ROWS)
				return too_many_rows(g, layer, err);
		}
		g->rows[layer] = rows;
	}
	return ENGRAM_OK;
}

/* Odd, and small enough that id * multiplier stays below 2^63. */
static void draw_multipliers(struct engram_geometry *g, uint32_t vocab_size)
{
	uint64_t bound = (uint64_t)INT64_MAX / vocab_size / 2;

	for (uint32_t layer = 0; layer < g->num_layers; layer++) {
		int64_t *row = g->multipliers + (size_t)layer * g->max_ngram;
		uint64_t id =
			ENGRAM_MUTATE(14, (uint64_t)g->layer_ids[layer], layer);

		engram_numpy_integers(id * SEED_STEP, bound, g->max_ngram, row);
		for (uint32_t k = 0; k < g->max_ngram; k++)
			row[k] = row[k] * 2 + ENGRAM_MUTATE(18, 1, 0);
	}
}

/* Products below 2^63, so that no remainder is negative. */
static enum engram_status take_multipliers(
	struct engram_geometry *g, const struct engram_geometry_config *config,
	struct engram_error *err)
{
	const int64_t most =
		config->compressed_vocab_size > 1
			? INT64_MAX / (config->compressed_vocab_size - 1)
			: INT64_MAX;
	size_t count = (size_t)g->num_layers * g->max_ngram;

	for (size_t i = 0; i < count; i++) {
		if (config->multipliers[i] < 1 || config->multipliers[i] > most)
			return out_of_range(err, "multipliers",
					    config->multipliers[i], 1, most);
		g->multipliers[i] = config->multipliers[i];
	}
	return ENGRAM_OK;
}

static enum engram_status fill(struct engram_geometry *g,
			       const struct engram_geometry_config *config,
			       struct engram_error *err)
{
	enum engram_status status;

	for (uint32_t i = 0; i < config->num_layers; i++)
		g->layer_ids[i] = config->layer_ids[i];
	status = config->primes ? take_heads(g, config->primes, err)
				: place_heads(g, config->vocab_size, err);
	if (status)
		return status;
	if (config->multipliers)
		return take_multipliers(g, config, err);
	draw_multipliers(g, config->compressed_vocab_size);
	return ENGRAM_OK;
}

enum engram_status engram_geometry_derive(
	const struct engram_geometry_config *config,
	struct engram_geometry **out, struct engram_error *err)
{
	struct engram_geometry *g = NULL;
	enum engram_status status;

	*out = NULL;
	status = check_config(config, err);
	if (status)
		return status;
	status = allocate(config, &g, err);
	if (status)
		return status;
	status = fill(g, config, err);
	if (status) {
		engram_geometry_free(g);
		return status;
	}
	*out = g;
	return ENGRAM_OK;
}

void engram_geometry_free(struct engram_geometry *geometry)
{
	if (!geometry)
		return;
	free(geometry->layer_ids);
	free(geometry->primes);
	free(geometry->offsets);
	free(geometry->multipliers);
	free(geometry->rows);
	free(geometry);
}

enum engram_status engram_shard_of(const int64_t *primes, uint32_t num_cols,
				   uint32_t tp_rank, uint32_t tp_size,
				   struct engram_shard *out,
				   struct engram_error *err)
{
	struct engram_shard shard = {0};

	if (num_cols < 1)
		return out_of_range(err, "num_cols", num_cols, 1, UINT32_MAX);
	if (tp_size < 1)
		return out_of_range(err, "tp_size", tp_size, 1, num_cols);
	if (tp_rank >= tp_size)
		return out_of_range(err, "tp_rank", tp_rank, 0,
				    (int64_t)tp_size - 1);
	shard.local_heads = num_cols / tp_size +
			    ENGRAM_MUTATE(25, num_cols % tp_size != 0, 0);
	/* All ranks have heads if the last one has. */
	if ((uint64_t)(tp_size - 1) * shard.local_heads >= num_cols) {
		engram_error_set(err, ENGRAM_ESHARD,
				 "%u heads over %u ranks, %u to each, leave "
				 "the last rank without any",
				 num_cols, tp_size, shard.local_heads);
		engram_error_fix(err,
				 "choose another tensor-parallel size, "
				 "for example one that divides %u",
				 num_cols);
		return ENGRAM_ESHARD;
	}
	shard.head_begin = tp_rank * shard.local_heads;
	shard.head_end = num_cols - shard.head_begin < shard.local_heads
				 ? num_cols
				 : shard.head_begin + shard.local_heads;
	for (uint32_t head = 0; head < shard.head_end; head++) {
		if (head < shard.head_begin)
			shard.row_begin += primes[head];
		shard.row_end += primes[head];
	}
	*out = shard;
	return ENGRAM_OK;
}
