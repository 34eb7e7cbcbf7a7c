/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ends where reading and writing is an error. */
#ifndef TEST_GUARD_H
#define TEST_GUARD_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

struct guarded {
	uint8_t *base;
	size_t usable;
};

/* Room for `bytes`, kept until guard_free. */
static inline struct guarded guard_alloc(size_t bytes)
{
	size_t usable = (bytes + 0xffff) & ~(size_t)0xffff;
	uint8_t *base = mmap(NULL, usable + 0x10000, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED || mprotect(base + usable, 0x10000, PROT_NONE))
		abort();
	return (struct guarded){base, usable};
}

static inline void guard_free(struct guarded *g)
{
	munmap(g->base, g->usable + 0x10000);
}

/* The last `bytes` of it. */
static inline void *guard_tail(const struct guarded *g, size_t bytes)
{
	return g->base + g->usable - bytes;
}

#endif
