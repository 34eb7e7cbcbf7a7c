/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

/* splitmix64 */
uint64_t rng_next(struct rng *rng)
{
	uint64_t z = rng->state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

int64_t rng_in(struct rng *rng, int64_t low, int64_t high)
{
	uint64_t span = (uint64_t)high - (uint64_t)low + 1;

	return (int64_t)((uint64_t)low + (rng_next(rng) >> 1) % span);
}

int rng_percent(struct rng *rng, int percent)
{
	return rng_in(rng, 0, 99) < percent;
}

void rng_fill(struct rng *rng, void *to, size_t bytes)
{
	uint8_t *at = to;

	for (; bytes >= 8; bytes -= 8, at += 8) {
		uint64_t word = rng_next(rng);

		memcpy(at, &word, 8);
	}
	while (bytes--)
		*at++ = (uint8_t)rng_next(rng);
}

void *need(size_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);

	if (!memory) {
		fprintf(stderr, "out of memory: %zu bytes\n", bytes);
		exit(1);
	}
	return memory;
}

/* An order of the axes, the last of it the innermost. */
static void shuffle_axes(struct rng *rng, int *order)
{
	for (int i = 2; i > 0; i--) {
		int j = (int)rng_in(rng, 0, i), other = order[i];

		order[i] = order[j];
		order[j] = other;
	}
}

void view_make(struct view *v, struct rng *rng, size_t item, int64_t n0,
	       int64_t n1, int64_t n2, int64_t shift)
{
	int order[3] = {0, 1, 2}, dense = rng_percent(rng, 40);
	int64_t step = 1, low = 0, high = 0;
	size_t start = 0;

	*v = (struct view){.item = item, .shape = {n0, n1, n2}};
	if (!dense)
		shuffle_axes(rng, order);
	for (int i = 2; i >= 0; i--) {
		int axis = order[i];
		int64_t n = v->shape[axis] < 1 ? 1 : v->shape[axis];

		if (!dense)
			step *= rng_in(rng, 1, 3);
		v->stride[axis] = dense || rng_percent(rng, 60) ? step : -step;
		if (v->stride[axis] < 0)
			low += (n - 1) * v->stride[axis];
		else
			high += (n - 1) * v->stride[axis];
		step *= n;
	}
	v->bytes = (size_t)(high - low + 1) * item;
	if (shift > 0 && rng_percent(rng, 50))
		start = (size_t)rng_in(rng, 0, shift) / item * item;
	v->memory = need(v->bytes + start);
	rng_fill(rng, v->memory, v->bytes + start);
	v->begin = (uint8_t *)v->memory + start;
	v->first = v->begin - low * (int64_t)item;
}

void view_clone(struct view *to, const struct view *from)
{
	size_t start = (size_t)(from->begin - (uint8_t *)from->memory);

	*to = *from;
	to->memory = need(from->bytes + start);
	memcpy(to->memory, from->memory, from->bytes + start);
	to->begin = (uint8_t *)to->memory + start;
	to->first = to->begin + (from->first - from->begin);
}

void view_free(struct view *v)
{
	free(v->memory);
	v->memory = NULL;
}

static void clear_items(struct view *v)
{
	for (int64_t i = 0; i < v->shape[0]; i++)
		for (int64_t j = 0; j < v->shape[1]; j++)
			for (int64_t k = 0; k < v->shape[2]; k++)
				memset(view_at(v, i, j, k), 0, v->item);
}

int view_gaps_equal(struct view *a, struct view *b, char *why)
{
	clear_items(a);
	clear_items(b);
	for (size_t i = 0; i < a->bytes; i++) {
		if (a->begin[i] == b->begin[i])
			continue;
		snprintf(why, WHY,
			 "byte %zu of %zu, in a gap of the output, was written",
			 i, a->bytes);
		return -1;
	}
	return 0;
}
