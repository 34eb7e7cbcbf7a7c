/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <pthread.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdlib.h>

#include "json_memory.h"

#define RESERVE_BYTES (256u << 10)

/* jansson's allocator is one for the process, hence this state. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local bool failed;

static struct {
	pthread_mutex_t lock;
	size_t used;
	unsigned int live; /* the reserve is whole again at none */
	alignas(max_align_t) char bytes[RESERVE_BYTES];
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *reserve_take(size_t size)
{
	const size_t unit = alignof(max_align_t);
	void *memory = NULL;

	if (size > RESERVE_BYTES)
		return NULL;
	size = (size + unit - 1) / unit * unit;
	pthread_mutex_lock(&reserve.lock);
	if (size <= RESERVE_BYTES - reserve.used) {
		memory = reserve.bytes + reserve.used;
		reserve.used += size;
		reserve.live++;
	}
	pthread_mutex_unlock(&reserve.lock);
	return memory;
}

static void reserve_give(void)
{
	pthread_mutex_lock(&reserve.lock);
	if (--reserve.live == 0)
		reserve.used = 0;
	pthread_mutex_unlock(&reserve.lock);
}

static void *json_malloc(size_t size)
{
	void *memory = malloc(size);

	if (memory)
		return memory;
	failed = true;
	return reserve_take(size);
}

static void json_free(void *memory)
{
	const char *at = memory;

	if (at >= reserve.bytes && at < reserve.bytes + RESERVE_BYTES)
		reserve_give();
	else
		free(memory);
}

static void install(void)
{
	json_set_alloc_funcs(json_malloc, json_free);
}

void json_memory_begin(void)
{
	pthread_once(&once, install);
	failed = false;
}

bool json_memory_failed(void)
{
	return failed;
}
