/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "json.h"

#define WORD_MAX 40

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

/* Levenshtein distance; words over WORD_MAX are far from everything. */
static size_t distance(const char *a, const char *b)
{
	const size_t a_len = strlen(a), b_len = strlen(b);
	size_t row[WORD_MAX + 1];

	if (a_len > WORD_MAX || b_len > WORD_MAX)
		return SIZE_MAX;
	for (size_t j = 0; j <= b_len; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_len; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			const size_t above = row[j];

			row[j] = min3(above + 1, row[j - 1] + 1,
				      diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[b_len];
}

const char *json_nearest(const char *word, const char *const *words)
{
	/* A third of the letters may be wrong, but always one or two. */
	size_t best = strlen(word) / 3 + 1;
	const char *near = NULL;

	if (best > 3)
		best = 3;
	for (; *words; words++) {
		const size_t d = distance(word, *words);

		if (d <= best && (!near || d < best)) {
			best = d;
			near = *words;
		}
	}
	return near;
}
