/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMCTL_BENCH_H
#define ENGRAMCTL_BENCH_H

#include <stdbool.h>

#include "engram.h"

enum bench_distribution { BENCH_UNIFORM = 0, BENCH_ZIPF = 1 };

struct bench_plan {
	const engram_table *table; /* its first layer */
	enum bench_distribution distribution;
	int64_t rows; /* of one repetition; rounded up to whole tokens */
	double seconds;
	int64_t repeat; /* 0: as many as fit into `seconds` */
	uint32_t threads;
};

/* Seconds of one repetition. */
struct bench_times {
	double median, min;
};

struct bench_result {
	int64_t rows;
	int64_t repetitions;
	struct bench_times lookup, plain;
	bool identical; /* both gave the same bits */
};

/* Both loops by turns, on fresh ids each, until the time is over. */
enum engram_status bench_run(const struct bench_plan *plan,
			     struct bench_result *out,
			     struct engram_error *err);

/*
 * The rival: what one writes first.  Copies each row to a buffer, turns its
 * codes into floats by a table of 256, multiplies by the block's scale, and
 * rounds to bf16.  One thread.  `record` is the buffer, of one row's stored
 * bytes.
 */
void bench_plain(const struct engram_rows *rows, const int32_t *ids,
		 int64_t count, unsigned char *record, uint16_t *out);

#endif
