/* SPDX-License-Identifier: Apache-2.0 */
/* Random shapes, strides and values, from a seed. */
#ifndef ENGRAM_GPU_RANDOM_H
#define ENGRAM_GPU_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* low..high, both included */
int64_t rng_in(struct rng *rng, int64_t low, int64_t high);
/* non-zero in so many of a hundred cases */
int rng_percent(struct rng *rng, int percent);
#define RNG_PICK(rng, list) \
	((list)[rng_in(rng, 0, (int64_t)(sizeof(list) / sizeof(*(list))) - 1)])
void rng_fill(struct rng *rng, void *to, size_t bytes);

/* Exits when there is no memory; never NULL. */
void *need(size_t bytes);

/*
 * An array of up to three dimensions in memory of its own that ends with it:
 * dense, or with its axes in any order, gaps and negative strides.  The
 * memory holds random bytes.
 */
struct view {
	void *memory;	/* to be freed */
	uint8_t *begin; /* of the bytes that the array spans */
	size_t bytes;
	size_t item;
	int64_t shape[3], stride[3]; /* in items */
	uint8_t *first;		     /* item [0, 0, 0] */
};

/* `shift`: how far from a multiple of 16 the span begins, at most */
void view_make(struct view *v, struct rng *rng, size_t item, int64_t n0,
	       int64_t n1, int64_t n2, int64_t shift);
void view_free(struct view *v);
/* Another one with the same bytes at the same alignment. */
void view_clone(struct view *to, const struct view *from);

static inline void *view_at(const struct view *v, int64_t i, int64_t j,
			    int64_t k)
{
	return v->first +
	       (i * v->stride[0] + j * v->stride[1] + k * v->stride[2]) *
		       (int64_t)v->item;
}

/* Sets the items of both to zero and compares what is between them: -1, and
 * `why` says it, when they differ. */
int view_gaps_equal(struct view *a, struct view *b, char *why);

#define WHY 2048 /* more than an error message */
/* Each runs one case; 0, or -1 with the reason in why[WHY]. */
int random_lookup(uint64_t seed, char *why);
int random_raw(uint64_t seed, char *why);
int random_decode(uint64_t seed, char *why);
int random_gate(uint64_t seed, char *why);
int random_sp_rows(uint64_t seed, char *why);
int random_hash(uint64_t seed, char *why);
int random_step(uint64_t seed, char *why);

#endif
