/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One inference process of the quick start: attaches to a table, hashes a
 * text, looks its rows up and gates them, writes the results to a file for
 * the driver to check, then stays attached until its standard input closes.
 *
 *	quickstart_client SOCKET TABLE TEXT OUTFILE
 *
 * OUTFILE, all little-endian: for each layer the hash ids int32 [tokens,
 * cols], then for each layer the rows bf16 [tokens, cols, dim], then for each
 * layer the gated residual stream bf16 [tokens, 1, dim].  There is no model
 * here, so the text's bytes are the token ids, the stream is a fixed
 * pattern, and the first two heads stand in for the projected key and value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engram.h"

static int fail(const char *what)
{
	const struct engram_error *err = engram_last_error();

	fprintf(stderr, "quickstart_client: %s: %s\n", what, err->message);
	if (err->fix[0])
		fprintf(stderr, "  fix: %s\n", err->fix);
	return 1;
}

struct work {
	struct engram_table_info info;
	int64_t tokens;
	int32_t *ids;	/* [layers][tokens, cols] */
	uint16_t *rows; /* [layers][tokens, cols, dim] */
	uint16_t *out;	/* [layers][tokens, 1, dim] */
	uint64_t misses;
};

static int hash_text(const engram_table *table, const char *text,
		     struct work *w)
{
	const uint32_t layers = w->info.num_layers, cols = w->info.num_cols;
	const int32_t bounds[2] = {0, (int32_t)w->tokens};
	int32_t *input = malloc((size_t)w->tokens * sizeof(*input));
	int64_t *positions = malloc((size_t)w->tokens * sizeof(*positions));
	int32_t *ids = malloc((size_t)w->tokens * layers * cols * sizeof(*ids));
	struct engram_hash_batch batch = {
		.num_tokens = w->tokens,
		.input_ids = input,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = bounds,
		.query_stride = 1,
		.num_requests = 1,
	};
	int rc = 1;

	if (!input || !positions || !ids) {
		fprintf(stderr, "quickstart_client: out of memory\n");
		goto out;
	}
	for (int64_t t = 0; t < w->tokens; t++) {
		input[t] = (unsigned char)text[t];
		positions[t] = t;
	}
	if (engram_hash(table, &batch, ids)) {
		fail("hash");
		goto out;
	}
	/* [tokens, layers, cols] -> [layers][tokens, cols] */
	for (int64_t t = 0; t < w->tokens; t++)
		for (uint32_t l = 0; l < layers; l++)
			memcpy(w->ids + (l * w->tokens + t) * cols,
			       ids + (t * layers + l) * cols,
			       cols * sizeof(*ids));
	rc = 0;
out:
	free(ids);
	free(positions);
	free(input);
	return rc;
}

static int gate_layer(const struct work *w, const uint16_t *rows, uint16_t *out)
{
	const uint32_t dim = w->info.dim, cols = w->info.num_cols;
	const size_t n = (size_t)w->tokens * dim;
	uint16_t *hidden = malloc(n * sizeof(*hidden));
	uint16_t *ones = malloc(dim * sizeof(*ones));
	int rc = 1;

	if (!hidden || !ones) {
		fprintf(stderr, "quickstart_client: out of memory\n");
		goto done;
	}
	for (size_t i = 0; i < n; i++) /* +-1.0 in a pattern */
		hidden[i] = i % 3 ? 0x3f80 : 0xbf80;
	for (uint32_t i = 0; i < dim; i++)
		ones[i] = 0x3f80;
	rc = engram_gate(
		&(struct engram_gate_args){
			.num_tokens = w->tokens,
			.hc_mult = 1,
			.dim = dim,
			.hidden = hidden,
			.hidden_stride = {dim, dim, 1},
			.kv = rows,
			.kv_stride = {(int64_t)cols * dim, 1},
			.num_kv_tokens = w->tokens,
			.q_weight = ones,
			.k_weight = ones,
			.q_stride = {dim, 1},
			.k_stride = {dim, 1},
			.eps = 1e-20f,
			.clamp = 1e-6f,
			.out_stride = {dim, dim, 1},
		},
		out);
	if (rc)
		fail("gate");
done:
	free(ones);
	free(hidden);
	return rc;
}

/* Read every page of the table, so that it counts in this process's RSS. */
static unsigned int touch(const engram_table *table, uint32_t num_layers)
{
	unsigned int sum = 0;

	for (uint32_t l = 0; l < num_layers; l++) {
		struct engram_layer_info layer;

		if (engram_layer_info(table, l, &layer))
			return 0;
		const unsigned char *p = layer.rows.codes;
		const int64_t bytes =
			(layer.rows.row_end - layer.rows.row_begin) *
			layer.rows.code_stride_bytes;
		for (int64_t i = 0; i < bytes; i += 4096)
			sum += p[i];
	}
	return sum;
}

static int write_results(const char *path, const struct work *w)
{
	const size_t ids = (size_t)w->info.num_layers * (size_t)w->tokens *
			   w->info.num_cols;
	const size_t outs =
		(size_t)w->info.num_layers * (size_t)w->tokens * w->info.dim;
	FILE *f = fopen(path, "wb");
	int ok;

	if (!f) {
		perror(path);
		return 1;
	}
	ok = fwrite(w->ids, sizeof(*w->ids), ids, f) == ids &&
	     fwrite(w->rows, sizeof(*w->rows), ids * w->info.dim, f) ==
		     ids * w->info.dim &&
	     fwrite(w->out, sizeof(*w->out), outs, f) == outs;
	if (fclose(f) || !ok) {
		perror(path);
		return 1;
	}
	return 0;
}

static int run(engram_table *table, const char *text, const char *path)
{
	struct work w = {.tokens = (int64_t)strlen(text)};
	const unsigned int seen = (engram_table_info(table, &w.info),
				   touch(table, w.info.num_layers));
	const size_t ids =
		(size_t)w.info.num_layers * (size_t)w.tokens * w.info.num_cols;
	int rc = 1;

	w.ids = malloc(ids * sizeof(*w.ids));
	w.rows = malloc(ids * w.info.dim * sizeof(*w.rows));
	w.out = malloc((size_t)w.info.num_layers * (size_t)w.tokens *
		       w.info.dim * sizeof(*w.out));
	if (!w.ids || !w.rows || !w.out) {
		fprintf(stderr, "quickstart_client: out of memory\n");
		goto out;
	}
	if (hash_text(table, text, &w))
		goto out;
	for (uint32_t l = 0; l < w.info.num_layers; l++) {
		const size_t n = (size_t)w.tokens * w.info.num_cols;
		uint16_t *rows = w.rows + l * n * w.info.dim;

		if (engram_lookup(table, l, w.ids + l * n, w.info.num_cols, 1,
				  w.tokens, rows, &w.misses)) {
			fail("lookup");
			goto out;
		}
		if (gate_layer(&w, rows,
			       w.out + l * (size_t)w.tokens * w.info.dim))
			goto out;
	}
	if (write_results(path, &w))
		goto out;
	printf("{\"pid\": %d, \"generation\": %llu, \"content_id\": \"%s\", "
	       "\"tokens\": %lld, \"layers\": %u, \"cols\": %u, \"dim\": %u, "
	       "\"misses\": %llu, \"mapped_bytes\": %llu, \"page_sum\": %u}\n",
	       (int)getpid(), (unsigned long long)w.info.generation,
	       w.info.content_id, (long long)w.tokens, w.info.num_layers,
	       w.info.num_cols, w.info.dim, (unsigned long long)w.misses,
	       (unsigned long long)w.info.mapped_bytes, seen);
	fflush(stdout);
	/* Stay attached until the driver has looked at us. */
	while (getchar() != EOF)
		;
	rc = 0;
out:
	free(w.out);
	free(w.rows);
	free(w.ids);
	return rc;
}

int main(int argc, char **argv)
{
	engram_client *client;
	engram_table *table;
	int rc;

	if (argc != 5) {
		fprintf(stderr, "usage: %s SOCKET TABLE TEXT OUTFILE\n",
			argv[0]);
		return 2;
	}
	if (engram_open(&(struct engram_open_params){.socket = argv[1]},
			&client))
		return fail("open");
	if (engram_attach(client,
			  &(struct engram_attach_params){.table = argv[2]},
			  &table)) {
		fail("attach");
		engram_close(client);
		return 1;
	}
	rc = run(table, argv[3], argv[4]);
	if (engram_detach(table))
		rc = fail("detach");
	if (engram_close(client))
		rc = fail("close");
	return rc;
}
