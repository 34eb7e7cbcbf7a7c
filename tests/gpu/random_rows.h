/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_GPU_RANDOM_ROWS_H
#define ENGRAM_GPU_RANDOM_ROWS_H

#include "engram_kernels.h"
#include "random.h"

/* Random stored rows and a lookup of them. */
struct rows_case {
	struct engram_rows rows;
	struct engram_lookup_args args; /* .misses is for the test to set */
	struct engram_cuda_grid grid;
	struct view ids;
	uint8_t *memory[2]; /* of codes or records, of scales */
	int64_t code_bytes, num_scales;
};

/* Sets the shim's options, too. */
void rows_case_make(struct rows_case *c, struct rng *rng);
/* Frees, and puts the options back. */
void rows_case_free(struct rows_case *c);
/* The geometry, for the end of a message. */
void rows_case_say(const struct rows_case *c, char *why);

#endif
