/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that has rows gathered, told what to do on its standard input:
 *
 *	gather_probe SOCKET TABLE SLOTS MAX_ROWS TIMEOUT_MS [TP_RANK TP_SIZE]
 *
 *	lookup TOKENS SEED	compare with engram_lookup, all layers
 *	post TOKENS SEED	the first half of that, layer 0
 *	take			the other half
 *	repeat COUNT TOKENS SEED
 *	scribble WHAT VALUE	write into the ring: post, flags, finished
 *	sync
 *
 * Each answers "ok ..." with the counters, or "failed: ...".  Ids are random,
 * some of them out of range.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_gather.h"
#include "engram_ring.h"

static engram_client *client;
static engram_table *table;
static engram_gather *gather;
static struct engram_table_info info;
static int32_t *ids;
static int64_t posted_tokens;

static uint32_t random32(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static void fail(const char *what)
{
	const struct engram_error *err = engram_last_error();

	printf("failed: %s: %s: %s\n", what, engram_status_name(err->status),
	       err->message);
	fflush(stdout);
	exit(1);
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);

	if (!memory)
		exit(1);
	return memory;
}

static void make_ids(int64_t tokens, uint64_t seed, uint64_t rows)
{
	size_t count = (size_t)tokens * info.num_cols;

	free(ids);
	ids = allocate(count * sizeof(*ids));
	for (size_t i = 0; i < count; i++)
		ids[i] = random32(&seed) % 31 == 0
				 ? (int32_t)random32(&seed)
				 : (int32_t)(random32(&seed) % rows);
}

static uint64_t rows_of(uint32_t layer)
{
	struct engram_layer_info l;

	if (engram_layer_info(table, layer, &l))
		fail("layer_info");
	return l.total_rows;
}

/* By whichever call, against the plain lookup. */
static void compare(uint32_t layer, int64_t tokens, int taking)
{
	size_t values = (size_t)tokens * info.local_heads * info.dim;
	uint16_t *got = allocate(values * 2), *want = allocate(values * 2);
	uint64_t misses[2] = {0, 0};

	memset(got, 0x5a, values * 2);
	if (engram_lookup(table, layer, ids, info.num_cols, 1, tokens, want,
			  &misses[0]))
		fail("lookup");
	if (taking ? engram_gather_take(gather, got, &misses[1])
		   : engram_gather_lookup(gather, layer, ids, info.num_cols, 1,
					  tokens, got, &misses[1]))
		fail("gather");
	if (memcmp(got, want, values * 2) || misses[0] != misses[1]) {
		printf("failed: other rows, %" PRIu64 " and %" PRIu64
		       " misses\n",
		       misses[0], misses[1]);
		fflush(stdout);
		exit(1);
	}
	free(got);
	free(want);
}

static void lookup(int64_t tokens, uint64_t seed)
{
	for (uint32_t i = 0; i < info.num_layers; i++) {
		make_ids(tokens, seed + i, rows_of(i));
		compare(i, tokens, 0);
	}
}

static void post(int64_t tokens, uint64_t seed)
{
	make_ids(tokens, seed, rows_of(0));
	posted_tokens = tokens;
	if (engram_gather_post(gather, 0, ids, info.num_cols, 1, tokens))
		fail("post");
}

static void scribble(const char *what, uint32_t value)
{
	const struct engram_ring *ring = engram_gather_ring(gather);

	for (uint32_t s = 0; s < ring->shape.slots; s++) {
		struct engram_ring_slot *slot = engram_ring_slot(ring, s);

		if (!strcmp(what, "post"))
			memset(&slot->post, (int)value, sizeof(slot->post));
		else if (!strcmp(what, "flags"))
			memset(slot->flags, (int)value, sizeof(slot->flags));
		else if (!strcmp(what, "finished"))
			slot->answer.finished = value;
		else if (!strcmp(what, "header"))
			memset(engram_ring_header(ring), (int)value,
			       sizeof(struct engram_ring_header));
	}
}

static void answer(void)
{
	struct engram_gather_info g;

	if (engram_gather_info(gather, &g))
		fail("info");
	printf("ok gathered=%" PRIu64 " own=%" PRIu64 " timeouts=%" PRIu64
	       " stalled=%d threads=%" PRIu32 "\n",
	       g.rows_gathered, g.rows_own, g.timeouts, g.stalled, g.threads);
	fflush(stdout);
}

static void obey(const char *line)
{
	unsigned int tokens, count;
	char what[32];
	uint64_t seed;

	if (sscanf(line, "lookup %u %" SCNu64, &tokens, &seed) == 2) {
		lookup(tokens, seed);
	} else if (sscanf(line, "repeat %u %u %" SCNu64, &count, &tokens,
			  &seed) == 3) {
		while (count--)
			lookup(tokens, seed++);
	} else if (sscanf(line, "post %u %" SCNu64, &tokens, &seed) == 2) {
		post(tokens, seed);
	} else if (!strncmp(line, "take", 4)) {
		compare(0, posted_tokens, 1);
	} else if (sscanf(line, "scribble %31s %u", what, &count) == 2) {
		scribble(what, count);
	} else if (!strncmp(line, "sync", 4)) {
		if (engram_gather_sync(gather))
			fail("sync");
	} else {
		printf("failed: what is %s", line);
		exit(2);
	}
	answer();
}

int main(int argc, char **argv)
{
	struct engram_open_params open = {.connect_wait_ms = 10000};
	struct engram_attach_params attach = {0};
	struct engram_gather_params params = {0};
	char line[256];

	if (argc < 6)
		return 2;
	open.socket = argv[1];
	attach.table = argv[2];
	params.slots = (uint32_t)atoi(argv[3]);
	params.max_rows = (uint32_t)atoi(argv[4]);
	params.timeout_ms = atoi(argv[5]);
	attach.tp_rank = argc > 7 ? (uint32_t)atoi(argv[6]) : 0;
	attach.tp_size = argc > 7 ? (uint32_t)atoi(argv[7]) : 1;
	if (engram_open(&open, &client))
		fail("open");
	if (engram_attach(client, &attach, &table) ||
	    engram_table_info(table, &info))
		fail("attach");
	if (engram_gather_open(table, &params, &gather))
		fail("gather_open");
	answer();
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	free(ids);
	if (engram_gather_close(gather) || engram_detach(table) ||
	    engram_close(client))
		fail("close");
	return 0;
}
