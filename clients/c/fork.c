/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <unistd.h>

#include "fork.h"

/*
 * State of the process, and so of the library and not of a handle: fork is an
 * event that handles are not told of.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fork_entry *watched;
static unsigned int generation = 1;
static int once_errno;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_child(void)
{
	struct fork_entry *entry;
	unsigned int i;

	__atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
	for (entry = watched; entry; entry = entry->next)
		for (i = 0; i < 2; i++)
			if (entry->fds[i] && *entry->fds[i] >= 0) {
				close(*entry->fds[i]);
				*entry->fds[i] = -1;
			}
	/* The entries stay in memory, but they are the parent's. */
	watched = NULL;
	pthread_mutex_unlock(&lock);
}

static void register_handlers(void)
{
	once_errno = pthread_atfork(before_fork, after_fork_parent,
				    after_fork_child);
}

enum engram_status fork_watch(struct fork_entry *entry,
			      struct engram_error *err)
{
	pthread_once(&once, register_handlers);
	if (once_errno)
		return engram_error_sys(err, once_errno, "pthread_atfork");
	pthread_mutex_lock(&lock);
	entry->prev = NULL;
	entry->next = watched;
	if (watched)
		watched->prev = entry;
	watched = entry;
	pthread_mutex_unlock(&lock);
	return ENGRAM_OK;
}

void fork_unwatch(struct fork_entry *entry)
{
	pthread_mutex_lock(&lock);
	if (entry->prev)
		entry->prev->next = entry->next;
	else
		watched = entry->next;
	if (entry->next)
		entry->next->prev = entry->prev;
	pthread_mutex_unlock(&lock);
}

unsigned int fork_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

enum engram_status fork_check(unsigned int made_under, struct engram_error *err)
{
	if (made_under == fork_generation())
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL, "handle used after fork");
	engram_error_fix(err, "open a connection of its own in each process");
	return ENGRAM_EINVAL;
}
