/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "checkpoint_config.h"
#include "checkpoint_faults.h"
#include "checkpoint_files.h"

static enum engram_status check_block(const struct checkpoint *c,
				      struct engram_error *err)
{
	if (c->scale_scheme != ENGRAM_SCALE_UE8M0_BLOCK ||
	    c->dim % c->block_size == 0)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "%s: rows of %" PRIu32 " elements, and a scale for "
			 "each %" PRIu32,
			 c->dir, c->dim, c->block_size);
	engram_error_path(err, "rows.block");
	engram_error_figures(err, c->block_size, c->dim);
	engram_error_fix(err, "give a block that divides the row");
	return ENGRAM_EGEOMETRY;
}

/* The rows that the primes give must be those that the model states. */
static enum engram_status check_rows(struct checkpoint *c,
				     const struct model_config *m,
				     struct engram_error *err)
{
	for (uint32_t l = 0; l < m->num_layers; l++) {
		const int64_t derived = c->geometry->rows[l];

		if (!m->num_embeddings[l] || derived == m->num_embeddings[l])
			continue;
		engram_error_set(err, ENGRAM_EGEOMETRY,
				 "%s/" CHECKPOINT_CONFIG ": layer %" PRId32
				 ": engram_num_embeddings is %" PRId64
				 ", but the primes from engram_vocab_size "
				 "%" PRIu32 " add up to %" PRId64,
				 c->dir, m->layer_ids[l], m->num_embeddings[l],
				 m->engram_vocab_size, derived);
		engram_error_path(err, "%s/" CHECKPOINT_CONFIG, c->dir);
		engram_error_figures(err, (uint64_t)derived,
				     (uint64_t)m->num_embeddings[l]);
		engram_error_fix(err, "download config.json again; it does "
				      "not describe a table this hash can "
				      "address");
		if (checkpoint_fault(c, ENGRAM_EGEOMETRY, err))
			return ENGRAM_EGEOMETRY;
	}
	return ENGRAM_OK;
}

static enum engram_status derive(struct checkpoint *c,
				 const struct model_config *m, bool by_format,
				 struct engram_error *err)
{
	const struct engram_geometry_config config = {
		.num_layers = m->num_layers,
		.layer_ids = m->layer_ids,
		.max_ngram = m->max_ngram,
		.num_heads = m->num_heads,
		.vocab_size = m->engram_vocab_size,
		.compressed_vocab_size = m->compressed_vocab_size,
		.min_ngram = m->min_ngram,
		.primes = m->moduli,
		.multipliers = m->multipliers,
	};
	enum engram_status status;

	status = engram_geometry_derive(&config, &c->geometry, err);
	if (status && by_format) {
		engram_error_context(err, "hash");
		engram_error_path(err, "hash");
		return status;
	}
	if (status) {
		engram_error_context(err, "%s/" CHECKPOINT_CONFIG, c->dir);
		engram_error_path(err, "%s/" CHECKPOINT_CONFIG, c->dir);
		return status;
	}
	return check_rows(c, m, err);
}

static void take_config(struct checkpoint *c, const struct model_config *m,
			const struct table_format *f)
{
	c->dim = f->dim ? f->dim : m->dim;
	c->block_size = f->block_size;
	c->dtype = f->dtype;
	c->scale_scheme = f->scale_scheme;
	c->row_multiple = f->row_multiple;
	c->compressed_vocab_size = m->compressed_vocab_size;
	c->prime_seed = m->engram_vocab_size;
	c->raw_pad_id = m->raw_pad_id;
	c->pad_id = -1;
	c->hidden_size = m->hidden_size;
	c->hc_mult = m->hc_mult;
	c->rms_norm_eps = m->rms_norm_eps;
	c->vocab_size = m->vocab_size;
}

enum engram_status checkpoint_read_config(struct checkpoint *c,
					  const struct table_format *f,
					  struct model_config *m,
					  struct checkpoint_common *common,
					  struct engram_error *err)
{
	const bool by_format = f->num_layers;
	enum engram_status status;
	uint64_t hash;
	uint32_t file;

	model_config_of_format(f, m);
	status = checkpoint_add_file(c, CHECKPOINT_CONFIG, &file, err);
	if (!status) {
		status = model_config_read(c->files[file].path, !by_format, m,
					   &hash, err);
		if (status)
			return status;
		c->files[file].identity.header_hash = hash;
		common->files[common->count++] = file;
	} else if (!by_format || status != ENGRAM_ENOTFOUND) {
		if (status == ENGRAM_ENOTFOUND)
			engram_error_fix(err, "name the directory that holds "
					      "config.json and the safetensors "
					      "files");
		return status;
	}
	take_config(c, m, f);
	status = check_block(c, err);
	return status ? status : derive(c, m, by_format, err);
}
