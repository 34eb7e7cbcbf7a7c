/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "reader.h"
#include "synth_rows.h"

#define SCALE_SPAN 32
#define ROW_MAX	   4096

struct known {
	char content_id[33];
	uint32_t seed;
};

struct reader_stats *stats;
const char *reader_socket, *reader_table;
static struct known known[SYNTH_SEEDS];
static int num_known;
static int64_t withdrawn_ms;

void reader_pause_ms(long ms)
{
	const struct timespec t = {.tv_nsec = ms * 1000000};

	nanosleep(&t, NULL);
}

uint64_t reader_random(uint64_t *state)
{
	return synth_mix((*state)++);
}

static bool passing(enum engram_status status)
{
	return status == ENGRAM_EDISCONNECTED || status == ENGRAM_ETIMEDOUT ||
	       status == ENGRAM_ENOTREADY || status == ENGRAM_EDRAINING ||
	       status == ENGRAM_ENOTFOUND || status == ENGRAM_EBUSY;
}

void reader_note(enum engram_status status)
{
	if (!status || passing(status))
		return;
	atomic_fetch_add(&stats->failures, 1);
	fprintf(stderr, "reader: %s\n", engram_last_error()->message);
}

bool reader_seed_of(const engram_table *table, uint32_t *seed)
{
	struct engram_table_info info;

	if (engram_table_info(table, &info))
		return false;
	atomic_store(&stats->generation, info.generation);
	for (int i = 0; i < num_known; i++)
		if (!strcmp(known[i].content_id, info.content_id)) {
			*seed = known[i].seed;
			return true;
		}
	fprintf(stderr, "reader: content id %s\n", info.content_id);
	atomic_fetch_add(&stats->unknown, 1);
	return false;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool reader_withdrawn(const engram_table *table, int64_t *since_ms)
{
	if (!withdrawn_ms || !table || engram_table_poll(table)) {
		*since_ms = 0;
		return false;
	}
	if (!*since_ms)
		*since_ms = now_ms();
	return now_ms() - *since_ms >= withdrawn_ms;
}

static bool row_is(const unsigned char *codes, const unsigned char *scales,
		   int32_t layer, int64_t row, uint32_t dim, uint32_t seed)
{
	unsigned char want[ROW_MAX];

	layer = synth_seeded(layer, seed);
	synth_codes(layer, (uint64_t)row, dim, want);
	synth_scales(layer, (uint64_t)row, dim / SCALE_SPAN, want + dim);
	return !memcmp(codes, want, dim) &&
	       !memcmp(scales, want + dim, dim / SCALE_SPAN);
}

void reader_check_row(const unsigned char *codes, const unsigned char *scales,
		      int32_t layer, int64_t row, uint32_t dim, uint32_t seed)
{
	if (row_is(codes, scales, layer, row, dim, seed))
		return;
	atomic_fetch_add(&stats->wrong, 1);
	for (uint32_t other = 0; other < SYNTH_SEEDS; other++)
		if (row_is(codes, scales, layer, row, dim, other))
			atomic_fetch_add(&stats->mixed, 1);
}

static bool take_known(const char *text)
{
	struct known *k = &known[num_known];

	if (num_known == SYNTH_SEEDS ||
	    sscanf(text, "%32[0-9a-f]=%" SCNu32, k->content_id, &k->seed) != 2)
		return false;
	num_known++;
	return true;
}

static bool map_stats(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return false;
	stats = mmap(NULL, sizeof(*stats), PROT_READ | PROT_WRITE, MAP_SHARED,
		     fd, 0);
	close(fd);
	return stats != MAP_FAILED;
}

bool reader_begin(int argc, char **argv)
{
	const char *ms = getenv("READER_WITHDRAWN_MS");
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	withdrawn_ms = ms ? atoi(ms) : 0;
	if (argc < 5 || !map_stats(argv[3])) {
		fprintf(stderr, "usage: %s SOCKET TABLE STATS HEX=SEED...\n",
			argv[0]);
		return false;
	}
	reader_socket = argv[1];
	reader_table = argv[2];
	for (i = 4; i < argc; i++)
		if (!take_known(argv[i]))
			return false;
	return true;
}
