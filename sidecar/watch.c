/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "checkpoint_config.h"
#include "checkpoint_files.h"
#include "clock.h"
#include "log.h"
#include "thread.h"
#include "watch.h"

#define STOP_SECONDS 2 /* for a look to end */

struct target {
	TAILQ_ENTRY(target) entry;
	uint64_t id;
	char *dir;
	bool needs_config;
	uint64_t debounce_ns;
	bool looking; /* the thread uses it without the lock */
	bool removed; /* meanwhile */
	struct watch_identity seen;
	uint64_t since_ns; /* it has been as seen */
	bool told;	   /* of `seen` */
	bool due;	   /* to be told */
	bool gone;	   /* not whole since it was told of */
	bool indexed;	   /* once it was, it has to be */
	bool returned;	   /* what is due is so after that */
};

struct watch {
	pthread_mutex_t lock; /* of all but `next_id` and what never changes */
	pthread_cond_t changed;
	pthread_t thread;
	TAILQ_HEAD(target_list, target) targets; /* by id */
	uint64_t next_id;
	bool stopping, ended, left;
	struct mailbox *box;
	struct mail mail;
	bool posted;
	watch_told *told;
	void *ctx;
};

/* ---- looking ---- */

/* Fold a file into the identity; as stat() fails, or 0. */
static int add_file(struct watch_identity *to, const char *dir,
		    const char *name)
{
	char path[PATH_MAX];
	XXH128_hash_t digest;
	struct stat st;
	int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

	if (n < 0 || (size_t)n >= sizeof(path))
		return ENAMETOOLONG;
	if (stat(path, &st)) {
		n = errno;
		/* A link to nothing is no file that may be left out. */
		return n == ENOENT && !lstat(path, &st) ? ENOTDIR : n;
	}
	const uint64_t facts[] = {to->hash[0],
				  to->hash[1],
				  XXH3_64bits(name, strlen(name)),
				  st.st_dev,
				  st.st_ino,
				  (uint64_t)st.st_size,
				  (uint64_t)st.st_mtim.tv_sec,
				  (uint64_t)st.st_mtim.tv_nsec};

	digest = XXH3_128bits(facts, sizeof(facts));
	to->hash[0] = digest.low64;
	to->hash[1] = digest.high64;
	return 0;
}

static int add_weights(struct watch_identity *to, const char *dir)
{
	struct dirent **entries;
	int rc = add_file(to, dir, CHECKPOINT_INDEX), n, i;

	to->indexed = !rc;
	if (rc != ENOENT)
		return rc;
	n = scandir(dir, &entries, checkpoint_is_safetensors, alphasort);
	if (n < 0)
		return errno;
	rc = n ? 0 : ENOENT;
	for (i = 0; i < n; i++) {
		if (!rc)
			rc = add_file(to, dir, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

void watch_look(const char *dir, bool needs_config, struct watch_identity *out)
{
	struct watch_identity found = {.whole = true};
	int rc = add_file(&found, dir, CHECKPOINT_CONFIG);

	if (!rc || (rc == ENOENT && !needs_config))
		rc = add_weights(&found, dir);
	if (rc)
		memset(&found, 0, sizeof(found));
	*out = found;
}

bool watch_same(const struct watch_identity *a, const struct watch_identity *b)
{
	return a->whole && b->whole && a->hash[0] == b->hash[0] &&
	       a->hash[1] == b->hash[1];
}

/* ---- the thread ---- */

static void free_target(struct target *target)
{
	free(target->dir);
	free(target);
}

static void free_watch(struct watch *watch)
{
	struct target *target;

	while ((target = TAILQ_FIRST(&watch->targets))) {
		TAILQ_REMOVE(&watch->targets, target, entry);
		free_target(target);
	}
	pthread_cond_destroy(&watch->changed);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

/* What a look of the round that began at `round_ns` has found; the lock is
 * held.  What changed first is told first. */
static void take(struct watch *watch, struct target *target,
		 const struct watch_identity *seen, uint64_t round_ns)
{
	bool whole = seen->whole && seen->indexed >= target->indexed;

	if (!whole) {
		target->gone = true;
		target->seen.whole = false;
		target->due = false;
		return;
	}
	target->indexed = seen->indexed;
	if (!watch_same(&target->seen, seen)) {
		target->seen = *seen;
		target->since_ns = clock_ns();
		target->told = false;
		target->due = false;
	}
	if (target->told || round_ns < target->since_ns + target->debounce_ns)
		return;
	target->told = true;
	target->due = true;
	target->returned = target->gone;
	target->gone = false;
	if (watch->posted)
		return;
	watch->posted = true;
	mailbox_post(watch->box, &watch->mail);
}

static void look_at(struct watch *watch, struct target *target,
		    uint64_t round_ns)
{
	struct watch_identity seen;

	target->looking = true;
	pthread_mutex_unlock(&watch->lock);
	watch_look(target->dir, target->needs_config, &seen);
	pthread_mutex_lock(&watch->lock);
	target->looking = false;
	if (target->removed)
		free_target(target);
	else if (!watch->stopping)
		take(watch, target, &seen, round_ns);
}

/* The one after `id`: others may have come and gone meanwhile. */
static struct target *next_target(struct watch *watch, uint64_t id)
{
	struct target *target;

	TAILQ_FOREACH(target, &watch->targets, entry)
	if (target->id > id)
		return target;
	return NULL;
}

static struct timespec in_seconds(int seconds)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += seconds;
	return at;
}

static void *thread_main(void *arg)
{
	struct watch *watch = arg;
	struct target *target;
	struct timespec at;
	uint64_t id, round_ns;
	bool left;

	pthread_mutex_lock(&watch->lock);
	while (!watch->stopping) {
		at = in_seconds(1);
		round_ns = clock_ns();
		for (id = 0;
		     !watch->stopping && (target = next_target(watch, id));) {
			id = target->id;
			look_at(watch, target, round_ns);
		}
		if (watch->stopping)
			break;
		if (TAILQ_EMPTY(&watch->targets))
			pthread_cond_wait(&watch->changed, &watch->lock);
		else
			pthread_cond_clockwait(&watch->changed, &watch->lock,
					       CLOCK_MONOTONIC, &at);
	}
	watch->ended = true;
	left = watch->left;
	pthread_cond_broadcast(&watch->changed);
	pthread_mutex_unlock(&watch->lock);
	if (left)
		free_watch(watch);
	return NULL;
}

/* ---- the loop ---- */

static struct target *next_due(struct watch *watch)
{
	struct target *target;

	TAILQ_FOREACH(target, &watch->targets, entry)
	if (target->due)
		return target;
	return NULL;
}

static void deliver(struct mail *mail)
{
	struct watch *watch =
		(struct watch *)((char *)mail - offsetof(struct watch, mail));
	struct watch_identity seen;
	struct target *target;
	bool returned;
	uint64_t id;

	pthread_mutex_lock(&watch->lock);
	watch->posted = false;
	while ((target = next_due(watch))) {
		target->due = false;
		id = target->id;
		seen = target->seen;
		returned = target->returned;
		/* Who is told may add and remove. */
		pthread_mutex_unlock(&watch->lock);
		watch->told(watch->ctx, id, &seen, returned);
		pthread_mutex_lock(&watch->lock);
	}
	pthread_mutex_unlock(&watch->lock);
}

enum engram_status watch_start(struct watch **out, struct mailbox *box,
			       watch_told *told, void *ctx,
			       struct engram_error *err)
{
	struct watch *watch = calloc(1, sizeof(*watch));
	int rc;

	*out = NULL;
	if (!watch)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to watch checkpoints");
	TAILQ_INIT(&watch->targets);
	watch->box = box;
	watch->mail.deliver = deliver;
	watch->told = told;
	watch->ctx = ctx;
	rc = pthread_mutex_init(&watch->lock, NULL);
	if (rc)
		goto no_lock;
	rc = pthread_cond_init(&watch->changed, NULL);
	if (rc)
		goto no_cond;
	rc = thread_start(&watch->thread, thread_main, watch);
	if (rc)
		goto no_thread;
	*out = watch;
	return ENGRAM_OK;

no_thread:
	pthread_cond_destroy(&watch->changed);
no_cond:
	pthread_mutex_destroy(&watch->lock);
no_lock:
	free(watch);
	return engram_error_sys(err, rc, "a thread that watches checkpoints");
}

void watch_stop(struct watch *watch)
{
	const struct timespec deadline = in_seconds(STOP_SECONDS);
	int rc = 0;
	bool ended;

	if (!watch)
		return;
	pthread_mutex_lock(&watch->lock);
	watch->stopping = true;
	pthread_cond_broadcast(&watch->changed);
	while (!watch->ended && !rc)
		rc = pthread_cond_clockwait(&watch->changed, &watch->lock,
					    CLOCK_MONOTONIC, &deadline);
	ended = watch->ended;
	watch->left = !ended;
	if (!ended)
		pthread_detach(watch->thread);
	pthread_mutex_unlock(&watch->lock);
	if (!ended) {
		log_warn("a file system with a watched checkpoint does not "
			 "answer: left");
		return;
	}
	pthread_join(watch->thread, NULL);
	free_watch(watch);
}

enum engram_status watch_add(struct watch *watch, const char *dir,
			     bool needs_config, uint32_t debounce_seconds,
			     uint64_t *id, struct engram_error *err)
{
	struct target *target = calloc(1, sizeof(*target));

	if (target)
		target->dir = strdup(dir);
	if (!target || !target->dir) {
		free(target);
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to watch %s", dir);
	}
	target->needs_config = needs_config;
	target->debounce_ns = debounce_seconds * UINT64_C(1000000000);
	target->id = *id = ++watch->next_id;
	pthread_mutex_lock(&watch->lock);
	TAILQ_INSERT_TAIL(&watch->targets, target, entry);
	pthread_cond_broadcast(&watch->changed);
	pthread_mutex_unlock(&watch->lock);
	return ENGRAM_OK;
}

void watch_remove(struct watch *watch, uint64_t id)
{
	struct target *target;

	pthread_mutex_lock(&watch->lock);
	TAILQ_FOREACH(target, &watch->targets, entry)
	{
		if (target->id != id)
			continue;
		TAILQ_REMOVE(&watch->targets, target, entry);
		target->removed = true;
		if (!target->looking)
			free_target(target);
		break;
	}
	pthread_mutex_unlock(&watch->lock);
}
