/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What readers of a table that is reloaded have in common: counts that outlive
 * a SIGKILL, in the mapped file STATS, and what a row must be.
 *
 *	READER SOCKET TABLE STATS HEX=SEED...
 *
 * The content id that attach gave says which seed; rows of another are counted
 * as wrong, and as mixed if they are those of another seed.
 */
#ifndef SOAK_READER_H
#define SOAK_READER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engram.h"

/* A call that gets no answer for so long has failed. */
#define READER_CALL_MS 500

/* row_reader.py reads it. */
struct reader_stats {
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
extern struct reader_stats *stats;
extern const char *reader_socket, *reader_table;

/* Take the command line; the process ends with its parent. */
bool reader_begin(int argc, char **argv);

/* Count a failure, unless it is what a sidecar that comes, goes or reloads may
 * answer. */
void reader_note(enum engram_status status);
/* Which rows the table must have. */
bool reader_seed_of(const engram_table *table, uint32_t *seed);
/* Has the table been withdrawn for as long as it may be read?  That is
 * READER_WITHDRAWN_MS of the environment, for tables that are reloaded in
 * place: with READER_CALL_MS less than their settle_seconds.  All others are
 * read on, through restarts of engramd however long. */
bool reader_withdrawn(const engram_table *table, int64_t *since_ms);

void reader_check_row(const unsigned char *codes, const unsigned char *scales,
		      int32_t layer, int64_t row, uint32_t dim, uint32_t seed);
uint64_t reader_random(uint64_t *state);
void reader_pause_ms(long ms);

#endif
