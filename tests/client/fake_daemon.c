/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake table of fake.h on a socket, for tests of engramctl: prints the
 * socket's path and the parameters of the hash as a line of JSON, and serves
 * until stdin ends.
 */
#include <stdio.h>
#include <unistd.h>

#include "fake.h"

static json_t *numbers(const int64_t *values, int count)
{
	json_t *list = json_array();
	int i;

	for (i = 0; i < count; i++)
		json_array_append_new(list, json_integer(values[i]));
	return list;
}

int main(void)
{
	struct fake_table table;
	const struct engram_geometry *g;
	struct fake fake;
	int64_t map[FAKE_VOCAB];
	json_t *hello;
	char byte;
	int i;

	fake_table_make(&table, NULL);
	fake_start(&fake, &table, fake_serve);
	g = table.geometry;
	for (i = 0; i < FAKE_VOCAB; i++)
		map[i] = table.token_map[i];
	hello = json_pack(
		"{s:s, s:o, s:o, s:o, s:o}", "socket", fake.path, "primes",
		numbers(g->primes, FAKE_LAYERS * FAKE_COLS), "offsets",
		numbers(g->offsets, FAKE_LAYERS * FAKE_COLS), "multipliers",
		numbers(g->multipliers, FAKE_LAYERS * FAKE_MAX_NGRAM),
		"token_map", numbers(map, FAKE_VOCAB));
	json_dumpf(hello, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(hello);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	fake_stop(&fake);
	fake_table_free(&table);
	return 0;
}
