/* SPDX-License-Identifier: Apache-2.0 */
/* Rows whose place can be told from their content, for every rank, and what a
 * gather must make of them.  Shared by the tests of both backends. */
#ifndef TEST_GATHER_CASE_H
#define TEST_GATHER_CASE_H

#include <stdint.h>

#define GATHER_PADDING 0xdead

struct gather_case {
	uint32_t size, heads, local_heads, dim;
	int64_t tokens;
	int sequence_parallel;
};

/* Never 0 and, for fewer than 2^15 elements, never twice; never the
 * padding, which is above. */
static inline uint16_t gather_element(const struct gather_case *c,
				      int64_t token, uint32_t head, uint32_t d)
{
	return (uint16_t)(1 + ((token * c->heads + head) * c->dim + d) % 32767);
}

/* Elements that a rank looks up, and that it gets. */
static inline int64_t gather_in(const struct gather_case *c)
{
	return c->tokens * c->local_heads * c->dim;
}

static inline int64_t gather_out_tokens(const struct gather_case *c)
{
	return c->sequence_parallel ? (c->tokens + c->size - 1) / c->size
				    : c->tokens;
}

static inline int64_t gather_out(const struct gather_case *c)
{
	return gather_out_tokens(c) * c->heads * c->dim;
}

static inline void gather_fill(const struct gather_case *c, uint32_t rank,
			       uint16_t *to)
{
	for (int64_t t = 0; t < c->tokens; t++)
		for (uint32_t i = 0; i < c->local_heads; i++)
			for (uint32_t d = 0; d < c->dim; d++) {
				uint32_t head = rank * c->local_heads + i;

				*to++ = head < c->heads
						? gather_element(c, t, head, d)
						: GATHER_PADDING;
			}
}

/* The first element that is wrong, or -1. */
static inline int64_t gather_differs(const struct gather_case *c, uint32_t rank,
				     const uint16_t *got)
{
	int64_t tokens = gather_out_tokens(c), i = 0;
	int64_t first = c->sequence_parallel ? rank * tokens : 0;

	for (int64_t t = first; t < first + tokens; t++)
		for (uint32_t h = 0; h < c->heads; h++)
			for (uint32_t d = 0; d < c->dim; d++, i++) {
				uint16_t want =
					t < c->tokens
						? gather_element(c, t, h, d)
						: 0;

				if (got[i] != want)
					return i;
			}
	return -1;
}

/* The cases that both backends run. */
static const uint32_t gather_heads[] = {1, 5, 24};
static const int64_t gather_tokens[] = {0, 1, 2, 7, 16, 17};

#define GATHER_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
