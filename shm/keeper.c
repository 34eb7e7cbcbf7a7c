/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing.h"
#include "keeper.h"

struct kept {
	struct kept *next;
	struct engram_segment_entry entry;
	int fd; /* inherited, or -1 */
};

struct engram_keeper {
	pthread_mutex_t lock; /* all below */
	struct engram_keeper_ops ops;
	void *ctx;
	char instance[ENGRAM_NAME_MAX + 1];
	struct kept *first;
	size_t count; /* with those that are about to be forgotten */
};

struct engram_keeper *engram_keeper_new(const char *instance,
					const struct engram_keeper_ops *ops,
					void *ctx)
{
	struct engram_keeper *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	pthread_mutex_init(&k->lock, NULL);
	k->ops = *ops;
	k->ctx = ctx;
	strncpy(k->instance, instance, sizeof(k->instance) - 1);
	return k;
}

/* The link that leads to it, or to the end of the list. */
static struct kept **find(struct engram_keeper *k, const char *name)
{
	struct kept **at = &k->first;

	while (*at && strcmp((*at)->entry.name, name) != 0)
		at = &(*at)->next;
	return at;
}

static void take_out(struct engram_keeper *k, struct kept **at)
{
	struct kept *kept = *at;

	*at = kept->next;
	k->count--;
	backing_close(kept->fd);
	free(kept);
}

void engram_keeper_free(struct engram_keeper *k)
{
	if (!k)
		return;
	while (k->first)
		take_out(k, &k->first);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

static int put_in(struct engram_keeper *k,
		  const struct engram_segment_entry *entry, int fd,
		  uint64_t bytes)
{
	struct kept *kept = calloc(1, sizeof(*kept));

	if (!kept)
		return 0;
	kept->entry = *entry;
	kept->entry.bytes = bytes;
	kept->fd = fd;
	kept->next = k->first;
	k->first = kept;
	k->count++;
	return 1;
}

/* As for a name in a directory: of our own user, and memory. */
static int is_ours(const struct engram_keeper *k, const char *name, int fd,
		   struct engram_segment_entry *entry, struct stat *st)
{
	return segment_name_parse(name, entry) && !entry->temporary &&
	       !strcmp(entry->instance, k->instance) && !fstat(fd, st) &&
	       S_ISREG(st->st_mode) && st->st_uid == geteuid() &&
	       fcntl(fd, F_GET_SEALS) >= 0;
}

int engram_keeper_inherit(struct engram_keeper *k, const char *name, int fd)
{
	struct engram_segment_entry entry;
	struct kept **before;
	struct stat st;
	int kept = 0;

	pthread_mutex_lock(&k->lock);
	before = find(k, name);
	if (*before)
		take_out(k, before);
	else if (is_ours(k, name, fd, &entry, &st))
		kept = put_in(k, &entry, fd, (uint64_t)st.st_blocks * 512);
	if (!kept) {
		k->ops.forget(k->ctx, name);
		backing_close(fd);
	}
	pthread_mutex_unlock(&k->lock);
	return kept;
}

size_t engram_keeper_count(struct engram_keeper *k)
{
	size_t count;

	pthread_mutex_lock(&k->lock);
	count = k->count;
	pthread_mutex_unlock(&k->lock);
	return count;
}

int engram_keeper_has(struct engram_keeper *k, const char *name)
{
	int has;

	pthread_mutex_lock(&k->lock);
	has = *find(k, name) != NULL;
	pthread_mutex_unlock(&k->lock);
	return has;
}

int keeper_keep(struct engram_keeper *k, const char *name, int fd)
{
	struct engram_segment_entry entry;
	struct stat st;
	int kept = 0;

	if (!k || !segment_name_parse(name, &entry) || fstat(fd, &st))
		return 0;
	keeper_forget(k, name);
	pthread_mutex_lock(&k->lock);
	/* Noted first: what is kept and not known would never go. */
	if (put_in(k, &entry, -1, (uint64_t)st.st_blocks * 512)) {
		kept = k->ops.keep(k->ctx, name, fd, k->count - 1);
		if (!kept)
			take_out(k, &k->first);
	}
	pthread_mutex_unlock(&k->lock);
	return kept;
}

void keeper_forget(struct engram_keeper *k, const char *name)
{
	struct kept **at, *kept;

	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	at = find(k, name);
	kept = *at;
	if (kept)
		*at = kept->next;
	pthread_mutex_unlock(&k->lock);
	if (!kept)
		return;
	/* Nobody has to wait for this, nor for the memory to be freed.  The
	 * keeper goes first, so that it is not its time that this takes. */
	k->ops.forget(k->ctx, name);
	backing_close(kept->fd);
	free(kept);
	pthread_mutex_lock(&k->lock);
	k->count--;
	pthread_mutex_unlock(&k->lock);
}

int keeper_open(struct engram_keeper *k, const char *name)
{
	struct kept *kept;
	int fd = -1;

	if (!k) {
		errno = ENOENT;
		return -1;
	}
	pthread_mutex_lock(&k->lock);
	errno = ENOENT;
	kept = *find(k, name);
	if (kept && kept->fd >= 0)
		fd = fcntl(kept->fd, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&k->lock);
	return fd;
}

int keeper_list(struct engram_keeper *k, struct engram_segment_entry **entries,
		size_t *count)
{
	const struct kept *kept;
	size_t n = 0;

	*entries = NULL;
	*count = 0;
	if (!k)
		return 1;
	pthread_mutex_lock(&k->lock);
	*entries = calloc(k->count + 1, sizeof(**entries));
	for (kept = *entries ? k->first : NULL; kept; kept = kept->next)
		(*entries)[n++] = kept->entry;
	*count = n;
	pthread_mutex_unlock(&k->lock);
	return *entries != NULL;
}
