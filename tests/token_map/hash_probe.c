/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash sequences of tokens with a table of a sidecar.
 *	hash_probe SOCKET TABLE SEQUENCES TOKENS <input >output
 * in: int32 lengths [SEQUENCES], int32 tokens [TOKENS]
 * out: int32 ids [TOKENS, layers, columns]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "engram.h"

struct input {
	int64_t sequences, tokens;
	int32_t *lengths, *ids, *starts;
	int64_t *positions;
};

static bool make_input(struct input *in)
{
	const size_t n = (size_t)in->sequences, tokens = (size_t)in->tokens;
	int64_t at = 0;

	in->lengths = calloc(n, sizeof(*in->lengths));
	in->starts = calloc(n + 1, sizeof(*in->starts));
	in->ids = calloc(tokens, sizeof(*in->ids));
	in->positions = calloc(tokens, sizeof(*in->positions));
	if (!in->lengths || !in->starts || !in->ids || !in->positions ||
	    fread(in->lengths, sizeof(*in->lengths), n, stdin) != n ||
	    fread(in->ids, sizeof(*in->ids), tokens, stdin) != tokens)
		return false;
	for (size_t i = 0; i < n; i++) {
		for (int32_t k = 0; k < in->lengths[i] && at < in->tokens; k++)
			in->positions[at++] = k;
		in->starts[i + 1] = (int32_t)at;
	}
	return at == in->tokens;
}

static bool hash(engram_table *table, const struct input *in)
{
	const struct engram_hash_batch batch = {
		.num_tokens = in->tokens,
		.input_ids = in->ids,
		.input_stride = 1,
		.positions = in->positions,
		.position_stride = 1,
		.query_start_loc = in->starts,
		.query_stride = 1,
		.num_requests = in->sequences,
	};
	struct engram_table_info info;
	size_t count;
	int32_t *out;
	bool good;

	if (engram_table_info(table, &info))
		return false;
	count = (size_t)in->tokens * info.num_layers * info.num_cols;
	out = calloc(count, sizeof(*out));
	good = out && !engram_hash(table, &batch, out) &&
	       fwrite(out, sizeof(*out), count, stdout) == count;
	free(out);
	return good;
}

int main(int argc, char **argv)
{
	struct engram_open_params open = {0};
	struct engram_attach_params attach = {0};
	engram_client *client = NULL;
	engram_table *table = NULL;
	struct input in = {0};
	bool good;

	if (argc != 5)
		return 2;
	open.socket = argv[1];
	attach.table = argv[2];
	in.sequences = strtoll(argv[3], NULL, 10);
	in.tokens = strtoll(argv[4], NULL, 10);
	good = make_input(&in) && !engram_open(&open, &client) &&
	       !engram_attach(client, &attach, &table) && hash(table, &in);
	if (!good)
		fprintf(stderr, "%s\n", engram_last_error()->message);
	engram_detach(table);
	if (client)
		engram_close(client);
	free(in.lengths);
	free(in.starts);
	free(in.ids);
	free(in.positions);
	return !good;
}
