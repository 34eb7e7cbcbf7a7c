/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash four tokens and read the rows of the first layer.
 *	cc example.c $(pkg-config --cflags --libs engram) -o example
 *	./example TABLE
 */
#include <engram.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	const int32_t tokens[] = {1, 2, 3, 4}, starts[] = {0, 4};
	const int64_t positions[] = {0, 1, 2, 3};
	const struct engram_hash_batch batch = {
		.num_tokens = 4,
		.input_ids = tokens,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};
	const struct engram_attach_params params = {.table = argc > 1 ? argv[1]
								      : "demo"};
	struct engram_table_info info;
	uint64_t misses = 0;
	engram_client *client;
	engram_table *table;
	uint16_t *rows = NULL;
	int32_t *ids = NULL;

	if (engram_open(NULL, &client) ||
	    engram_attach(client, &params, &table) ||
	    engram_table_info(table, &info))
		goto failed;
	ids = calloc(4 * info.num_layers * info.num_cols, sizeof(*ids));
	rows = calloc(4 * info.local_heads * info.dim, sizeof(*rows));
	if (!ids || !rows || engram_hash(table, &batch, ids) ||
	    engram_lookup(table, 0, ids, info.num_layers * info.num_cols, 1, 4,
			  rows, &misses))
		goto failed;
	printf("%s generation %llu: token 3 reads row %d, bf16 %04x %04x\n",
	       info.name, (unsigned long long)info.generation,
	       ids[3 * info.num_layers * info.num_cols],
	       rows[3 * info.local_heads * info.dim],
	       rows[3 * info.local_heads * info.dim + 1]);
	free(ids);
	free(rows);
	engram_detach(table);
	return engram_close(client) != ENGRAM_OK;
failed:
	fprintf(stderr, "%s; %s\n", engram_last_error()->message,
		engram_last_error()->fix);
	free(ids);
	free(rows);
	return 1;
}
