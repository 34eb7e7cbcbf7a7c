/* SPDX-License-Identifier: Apache-2.0 */
/* Staged rows: every instruction set, layout, stride and count against a
 * plain loop, with guards around what may be written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_row_math.h"
#include "engram_segment.h"
#include "engram_stage.h"

#define CHECK(cond)                                                        \
	do {                                                               \
		if (!(cond)) {                                             \
			fprintf(stderr, "%s:%d: %s (%s, dim %u, n %zu)\n", \
				__FILE__, __LINE__, #cond, isa_name, dim,  \
				count);                                    \
			exit(1);                                           \
		}                                                          \
	} while (0)

#define ROWS  97
#define BEGIN 1000
#define MAX   70
#define GUARD 64

static const char *isa_name;
static uint32_t dim;
static size_t count;

static uint32_t random32(void)
{
	static uint64_t state = 88172645463325252u;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

static void check_one(const struct engram_rows *rows, size_t codes,
		      size_t scales, size_t shift)
{
	size_t record = codes + scales, stride = (record + 7) / 8 * 8;
	size_t room = (MAX + 8) * stride;
	uint8_t *memory = aligned_alloc(64, (room + 2 * GUARD + 63) / 64 * 64);
	uint8_t *out = memory + GUARD + shift;
	size_t limit = shift ? count : (count + 7) / 8 * 8;
	static int32_t ids[MAX];

	CHECK(memory);
	memset(memory, 0x5a, room + 2 * GUARD);
	for (size_t i = 0; i < count; i++)
		ids[i] = (int32_t)(BEGIN - 5 + random32() % (ROWS + 10));
	if (count > 3) {
		ids[1] = -1;
		ids[2] = INT32_MIN;
		ids[3] = INT32_MAX;
	}
	engram_cpu_stage(rows, ids, count, out, stride);
	for (size_t i = 0; i < count; i++)
		for (size_t at = 0; at < record; at++) {
			int64_t row = (int64_t)ids[i] - BEGIN;
			int here = row >= 0 && row < ROWS;
			const uint8_t *from =
				at < codes ? (const uint8_t *)rows->codes + at
					   : (const uint8_t *)rows->scales +
						     at - codes;
			int64_t step = at < codes ? rows->code_stride_bytes
						  : rows->scale_stride_bytes;

			CHECK(out[i * stride + at] ==
			      (here ? from[row * step] : 0));
		}
	for (size_t at = limit * stride; at < room; at++)
		CHECK(out[at] == 0x5a);
	for (size_t at = 0; at < GUARD + shift; at++)
		CHECK(memory[at] == 0x5a);
	free(memory);
}

static void check_format(uint32_t dtype, uint32_t scheme, int packed)
{
	size_t codes = dim * (dtype == ENGRAM_BF16 ? 2u : 1u);
	size_t scales = scheme == ENGRAM_SCALE_UE8M0_BLOCK ? dim / 32 : 0;
	size_t bytes = ROWS * (codes + scales);
	uint8_t *memory = malloc(bytes);
	struct engram_rows rows = {
		.codes = memory,
		.scales = packed ? memory + codes : memory + ROWS * codes,
		.code_stride_bytes = (int64_t)(packed ? codes + scales : codes),
		.scale_stride_bytes =
			(int64_t)(packed ? codes + scales : scales),
		.row_begin = BEGIN,
		.row_end = BEGIN + ROWS,
		.dtype = dtype,
		.scale_scheme = scheme,
		.dim = dim,
		.block_size = 32,
	};
	static const size_t counts[] = {0, 1, 7, 8, 9, 16, 17, 64, MAX};

	CHECK(memory);
	if (!scales)
		rows.scales = NULL;
	for (size_t i = 0; i < bytes; i++)
		memory[i] = (uint8_t)random32();
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		count = counts[i];
		check_one(&rows, codes, scales, 0);
		check_one(&rows, codes, scales, 8);
	}
	free(memory);
}

int main(void)
{
	static const uint32_t dims[] = {32, 64, 256, 320, 1024, 1056};

	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++) {
		isa_name = engram_isa_name((enum engram_isa)isa);
		if (engram_cpu_set_isa((enum engram_isa)isa)) {
			printf("%s: not here\n", isa_name);
			continue;
		}
		for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
			dim = dims[i];
			check_format(ENGRAM_F8_E4M3, ENGRAM_SCALE_UE8M0_BLOCK,
				     1);
			check_format(ENGRAM_F8_E4M3, ENGRAM_SCALE_UE8M0_BLOCK,
				     0);
			check_format(ENGRAM_F8_E4M3, ENGRAM_SCALE_TENSOR, 1);
			check_format(ENGRAM_BF16, ENGRAM_SCALE_NONE, 0);
		}
	}
	return 0;
}
