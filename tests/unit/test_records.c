/* SPDX-License-Identifier: Apache-2.0 */
/* Records, and copies past the caches: every instruction set, shape and
 * alignment against a plain loop, with guards around what may be written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_kernels.h"
#include "engram_records.h"

#define CHECK(cond)                                                   \
	do {                                                          \
		if (!(cond)) {                                        \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, \
				__LINE__, #cond,                      \
				engram_isa_name(engram_cpu_isa()));   \
			exit(1);                                      \
		}                                                     \
	} while (0)

#define ROOM  20000u
#define GUARD 128u

static unsigned char from[ROOM], more[ROOM], out[ROOM + 2 * GUARD];

static void check_guards(const unsigned char *begin, size_t bytes)
{
	const unsigned char *p;

	for (p = out; p < out + sizeof(out); p++)
		CHECK(*p == 0xa5 || (p >= begin && p < begin + bytes));
}

static void check_records(size_t rows, size_t codes, size_t scales,
			  size_t shift)
{
	unsigned char *to = out + GUARD + shift;
	size_t r, record = codes + scales;

	memset(out, 0xa5, sizeof(out));
	engram_cpu_interleave(to, from + shift, more + 1, rows, codes, scales);
	for (r = 0; r < rows; r++) {
		CHECK(!memcmp(to + r * record, from + shift + r * codes,
			      codes));
		CHECK(!memcmp(to + r * record + codes, more + 1 + r * scales,
			      scales));
	}
	check_guards(to, rows * record);
}

static void check_stream(size_t bytes, size_t to_shift, size_t from_shift)
{
	unsigned char *to = out + GUARD + to_shift;

	memset(out, 0xa5, sizeof(out));
	engram_cpu_stream(to, from + from_shift, bytes);
	engram_cpu_stream_end();
	CHECK(!memcmp(to, from + from_shift, bytes));
	check_guards(to, bytes);
}

static void check_all(void)
{
	static const size_t codes[] = {32, 64, 256, 512, 1000};
	static const size_t bytes[] = {0,   1,	 8,    63,   64,  65,
				       127, 192, 2112, 8448, 8449};
	size_t i, rows, a, b;

	for (i = 0; i < 5; i++)
		for (rows = 0; rows <= 9; rows += 3)
			for (a = 0; a < 3; a++) {
				check_records(rows, codes[i], codes[i] / 32, a);
				check_records(rows, codes[i], 0, a);
				check_records(rows, 0, 8, a);
			}
	for (i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
		for (a = 0; a < 64; a += 7)
			for (b = 0; b < 64; b += 9)
				check_stream(bytes[i], a, b);
}

int main(void)
{
	int isa;

	for (size_t i = 0; i < ROOM; i++) {
		from[i] = (unsigned char)(i * 7 + i / 251) & 0x7f;
		more[i] = (unsigned char)(i * 11 + i / 241) & 0x7f;
	}
	for (isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++) {
		if (engram_cpu_set_isa((enum engram_isa)isa)) {
			printf("%s: not on this machine\n",
			       engram_isa_name((enum engram_isa)isa));
			continue;
		}
		check_all();
	}
	return 0;
}
