/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read a table's rows at full speed, and compare each with the function that
 * its generation must have (tests/synth/synth_rows.h).
 *
 *	row_reader SOCKET TABLE STATS HEX=SEED...
 *
 * The content id that attach gave says which seed; rows of another are
 * counted as wrong, and as mixed if they are those of another seed.  A thread
 * of its own moves to what is current, and the reading changes over between
 * two steps; where there is nothing, it goes on with what is mapped.
 * Counts go to the mapped file STATS as they come, so that they outlive a
 * SIGKILL.  Ends by itself when STATS is told to, or its parent is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engram.h"
#include "synth_rows.h"

#define STEP_ROWS  256 /* of each layer */
#define SCALE_SPAN 32
#define RECORD_MAX 4096

/* A table that is withdrawn is read for no longer than CALL_MS + ASK_MS without
 * an answer: less than any settle_seconds here but 0. */
#define CALL_MS 500
#define ASK_MS	500

/* row_reader.py reads it. */
struct stats {
	_Atomic uint64_t end; /* set by the other side */
	_Atomic uint64_t rows, steps, wrong, mixed;
	_Atomic uint64_t attaches, generation;
	_Atomic uint64_t unknown;  /* content ids that nobody announced */
	_Atomic uint64_t failures; /* that no restart or reload explains */
	_Atomic uint64_t idle;	   /* steps without a table */
	_Atomic uint64_t refreshes;
	_Atomic uint64_t seeds; /* a bit for each whose rows were read */
	_Atomic uint64_t parks;
};

struct known {
	char content_id[33];
	uint32_t seed;
};

struct held {
	engram_client *client;
	engram_table *table;
	uint32_t seed;
	bool parked;
};

static struct stats *stats;
static const char *socket_path, *table_name;
static struct known known[SYNTH_SEEDS];
static int num_known;

/* The reader takes `next` between two steps and puts what it had into
 * `last`; the mover waits for that. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct held next, last;
/* a generation that is prepared, or PARK, or 0: `next` */
static uint64_t move_to;
#define PARK UINT64_MAX
static bool move_waits, has_parked;
static atomic_bool mover_ended;

static void pause_ms(long ms)
{
	const struct timespec t = {.tv_nsec = ms * 1000000};

	nanosleep(&t, NULL);
}

static uint64_t random_next(uint64_t *state)
{
	return synth_mix((*state)++);
}

/* ---- moving ---- */

/* What a sidecar that comes, goes or reloads may answer. */
static bool passing(enum engram_status status)
{
	return status == ENGRAM_EDISCONNECTED || status == ENGRAM_ETIMEDOUT ||
	       status == ENGRAM_ENOTREADY || status == ENGRAM_EDRAINING ||
	       status == ENGRAM_ENOTFOUND || status == ENGRAM_EBUSY;
}

static void note(enum engram_status status)
{
	if (!status || passing(status))
		return;
	atomic_fetch_add(&stats->failures, 1);
	fprintf(stderr, "row_reader: %s\n", engram_last_error()->message);
}

static void let_go(struct held *held)
{
	note(engram_detach(held->table));
	note(engram_close(held->client));
	*held = (struct held){0};
}

static bool seed_of(const engram_table *table, uint32_t *seed)
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
	fprintf(stderr, "row_reader: content id %s\n", info.content_id);
	atomic_fetch_add(&stats->unknown, 1);
	return false;
}

static enum engram_status take_hold(struct held *held)
{
	const struct engram_open_params params = {.socket = socket_path,
						  .call_timeout_ms = CALL_MS};
	const struct engram_attach_params attach = {.table = table_name};
	enum engram_status status;

	*held = (struct held){0};
	status = engram_open(&params, &held->client);
	if (!status)
		status = engram_attach(held->client, &attach, &held->table);
	if (!status && !seed_of(held->table, &held->seed))
		status = ENGRAM_EDAMAGED;
	if (!status)
		atomic_fetch_add(&stats->attaches, 1);
	else {
		note(status);
		let_go(held);
	}
	return status;
}

/* Returns what the reader had before. */
static struct held hand_over(struct held held)
{
	pthread_mutex_lock(&lock);
	next = held;
	move_waits = true;
	while (move_waits)
		pthread_cond_wait(&moved, &lock);
	held = last;
	pthread_mutex_unlock(&lock);
	return held;
}

/* The reader changes over inside the handle it has. */
static void move_on(uint64_t generation)
{
	pthread_mutex_lock(&lock);
	move_to = generation;
	move_waits = true;
	while (move_waits)
		pthread_cond_wait(&moved, &lock);
	move_to = 0;
	pthread_mutex_unlock(&lock);
}

/* Has the reader stopped reading, so that its memory can be overwritten? */
static bool park(void)
{
	move_on(PARK);
	return has_parked;
}

static bool is_current(const engram_table *table)
{
	struct engram_table_info info;

	return table && !has_parked && !engram_table_info(table, &info) &&
	       engram_table_poll(table) == info.generation;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* May it be that its memory is about to be overwritten? */
static bool withdrawn(const engram_table *table, int64_t *since)
{
	if (!table || engram_table_poll(table)) {
		*since = 0;
		return false;
	}
	if (!*since)
		*since = now_ms();
	return now_ms() - *since >= ASK_MS;
}

static void *mover(void *arg)
{
	struct held now = {0}, found, old;
	enum engram_status status;
	uint64_t generation;
	int64_t since = 0;

	(void)arg;
	while (!atomic_load(&stats->end)) {
		pause_ms(1);
		if (withdrawn(now.table, &since) && !has_parked && park())
			continue;
		if (is_current(now.table))
			continue;
		status = now.table
				 ? engram_table_prepare(now.table, &generation)
				 : ENGRAM_ENOTFOUND;
		if (!status) {
			if (generation)
				move_on(generation);
			continue;
		}
		note(status);
		/* It may come back, and what is mapped is good till then. */
		if (status == ENGRAM_EDISCONNECTED)
			continue;
		if (status == ENGRAM_EDRAINING && now.table && park())
			continue;
		if (status == ENGRAM_ENOTREADY && has_parked)
			continue;
		status = take_hold(&found);
		/* One who unloads a table waits for those who have it. */
		if (status && status != ENGRAM_EDRAINING) {
			pause_ms(5);
			continue;
		}
		old = hand_over(found);
		now = found;
		let_go(&old);
	}
	old = hand_over((struct held){0});
	let_go(&old);
	atomic_store(&mover_ended, true);
	return NULL;
}

/* ---- reading ---- */

static bool row_is(const unsigned char *record, int32_t layer, int64_t row,
		   uint32_t dim, uint32_t seed)
{
	unsigned char want[RECORD_MAX];

	layer = synth_seeded(layer, seed);
	synth_codes(layer, (uint64_t)row, dim, want);
	synth_scales(layer, (uint64_t)row, dim / SCALE_SPAN, want + dim);
	return !memcmp(record, want, dim + dim / SCALE_SPAN);
}

static void count_wrong(const unsigned char *record, int32_t layer, int64_t row,
			uint32_t dim)
{
	atomic_fetch_add(&stats->wrong, 1);
	for (uint32_t seed = 0; seed < SYNTH_SEEDS; seed++)
		if (row_is(record, layer, row, dim, seed))
			atomic_fetch_add(&stats->mixed, 1);
}

static void read_layer(const struct held *held, uint32_t at, uint64_t *state)
{
	static unsigned char records[STEP_ROWS * RECORD_MAX];
	const uint64_t bytes = engram_record_bytes(held->table);
	struct engram_layer_info info;
	int64_t rows[STEP_ROWS];

	if (bytes > RECORD_MAX || engram_layer_info(held->table, at, &info)) {
		atomic_fetch_add(&stats->failures, 1);
		return;
	}
	for (int i = 0; i < STEP_ROWS; i++)
		rows[i] = (int64_t)(random_next(state) % info.total_rows);
	if (engram_read_rows(held->table, at, rows, STEP_ROWS, records)) {
		atomic_fetch_add(&stats->failures, 1);
		return;
	}
	for (int i = 0; i < STEP_ROWS; i++)
		if (!row_is(records + (uint64_t)i * bytes, info.layer_id,
			    rows[i], info.rows.dim, held->seed))
			count_wrong(records + (uint64_t)i * bytes,
				    info.layer_id, rows[i], info.rows.dim);
	atomic_fetch_add(&stats->rows, STEP_ROWS);
}

static void step(const struct held *held, uint64_t *state)
{
	struct engram_table_info info;

	if (!held->table || held->parked) {
		atomic_fetch_add(&stats->idle, 1);
		pause_ms(1);
		return;
	}
	if (engram_table_info(held->table, &info)) {
		atomic_fetch_add(&stats->failures, 1);
		return;
	}
	for (uint32_t i = 0; i < info.num_layers; i++)
		read_layer(held, i, state);
	atomic_fetch_or(&stats->seeds, UINT64_C(1) << held->seed);
	atomic_fetch_add(&stats->steps, 1);
}

static void park_here(struct held *held)
{
	enum engram_status status = engram_table_park(held->table);

	if (status != ENGRAM_EUNSUPPORTED)
		note(status);
	if (!held->parked && !status)
		atomic_fetch_add(&stats->parks, 1);
	held->parked = has_parked = !status;
}

static void change_over(struct held *held)
{
	enum engram_status status;

	pthread_mutex_lock(&lock);
	if (move_waits && move_to == PARK) {
		park_here(held);
		move_waits = false;
		pthread_cond_signal(&moved);
	} else if (move_waits && move_to) {
		status = engram_table_refresh(held->table, move_to);
		note(status);
		if (!status)
			held->parked = has_parked = false;
		if (seed_of(held->table, &held->seed)) {
			atomic_fetch_add(&stats->attaches, 1);
			atomic_fetch_add(&stats->refreshes, 1);
		}
		move_waits = false;
		pthread_cond_signal(&moved);
	} else if (move_waits) {
		last = *held;
		*held = next;
		has_parked = false;
		move_waits = false;
		pthread_cond_signal(&moved);
	}
	pthread_mutex_unlock(&lock);
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

int main(int argc, char **argv)
{
	uint64_t state = (uint64_t)getpid() << 32;
	struct held held = {0};
	pthread_t thread;
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc < 5 || !map_stats(argv[3])) {
		fprintf(stderr, "usage: row_reader SOCKET TABLE STATS "
				"HEX=SEED...\n");
		return 2;
	}
	socket_path = argv[1];
	table_name = argv[2];
	for (i = 4; i < argc; i++)
		if (!take_known(argv[i]))
			return 2;
	if (pthread_create(&thread, NULL, mover, NULL))
		return 2;
	while (!atomic_load(&mover_ended)) {
		change_over(&held);
		step(&held, &state);
	}
	pthread_join(thread, NULL);
	return 0;
}
