/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read a table's rows at full speed, and compare each with the function that
 * its generation must have (tests/synth/synth_rows.h); see reader.h.
 *
 * A thread of its own moves to what is current, and the reading changes over
 * between two steps; where there is nothing, it goes on with what is mapped.
 */
#include <pthread.h>
#include <unistd.h>

#include "reader.h"

#define STEP_ROWS  256 /* of each layer */
#define RECORD_MAX 4096

struct held {
	engram_client *client;
	engram_table *table;
	uint32_t seed;
	bool parked;
};

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

/* ---- moving ---- */

static void let_go(struct held *held)
{
	reader_note(engram_detach(held->table));
	reader_note(engram_close(held->client));
	*held = (struct held){0};
}

static enum engram_status take_hold(struct held *held)
{
	const struct engram_open_params params = {
		.socket = reader_socket, .call_timeout_ms = READER_CALL_MS};
	const struct engram_attach_params attach = {.table = reader_table};
	enum engram_status status;

	*held = (struct held){0};
	status = engram_open(&params, &held->client);
	if (!status)
		status = engram_attach(held->client, &attach, &held->table);
	if (!status && !reader_seed_of(held->table, &held->seed))
		status = ENGRAM_EDAMAGED;
	if (!status)
		atomic_fetch_add(&stats->attaches, 1);
	else {
		reader_note(status);
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

static void *mover(void *arg)
{
	struct held now = {0}, found, old;
	enum engram_status status;
	uint64_t generation;
	int64_t since = 0;

	(void)arg;
	while (!atomic_load(&stats->end)) {
		reader_pause_ms(1);
		if (reader_withdrawn(now.table, &since) && !has_parked &&
		    park())
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
		reader_note(status);
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
			reader_pause_ms(5);
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
		rows[i] = (int64_t)(reader_random(state) % info.total_rows);
	if (engram_read_rows(held->table, at, rows, STEP_ROWS, records)) {
		atomic_fetch_add(&stats->failures, 1);
		return;
	}
	for (int i = 0; i < STEP_ROWS; i++) {
		const unsigned char *record = records + (uint64_t)i * bytes;

		reader_check_row(record, record + info.rows.dim, info.layer_id,
				 rows[i], info.rows.dim, held->seed);
	}
	atomic_fetch_add(&stats->rows, STEP_ROWS);
}

static void step(const struct held *held, uint64_t *state)
{
	struct engram_table_info info;

	if (!held->table || held->parked) {
		atomic_fetch_add(&stats->idle, 1);
		reader_pause_ms(1);
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
		reader_note(status);
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
		reader_note(status);
		if (!status)
			held->parked = has_parked = false;
		if (reader_seed_of(held->table, &held->seed)) {
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

int main(int argc, char **argv)
{
	uint64_t state = (uint64_t)getpid() << 32;
	struct held held = {0};
	pthread_t thread;

	if (!reader_begin(argc, argv))
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
