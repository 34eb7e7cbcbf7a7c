/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "fd_store.h"
#include "log.h"

#define BARRIER_USEC (5 * 1000000)

static void complain(struct fd_store *store, const char *why, const char *fix)
{
	if (!atomic_exchange(&store->complained, true))
		log_warn("tables do not outlive this engramd",
			 LOG_S("why", why), LOG_S("fix", fix));
}

#define FIX                                                             \
	"run it as a service of systemd with FileDescriptorStoreMax=, " \
	"or use the shm or the hugetlbfs backing"

static int keep(void *ctx, const char *name, int fd, size_t count)
{
	struct fd_store *store = ctx;
	char text[320];
	int rc;

	if (!store->there) {
		complain(store, "no service manager keeps memfds", FIX);
		return 0;
	}
	if (store->max && count >= store->max) {
		complain(store, "the service manager's store is full",
			 "raise FileDescriptorStoreMax= of the unit");
		return 0;
	}
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
	rc = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
	if (rc > 0)
		return 1;
	complain(store, rc ? strerror(-rc) : "the service manager is gone",
		 FIX);
	return 0;
}

/*
 * The memory is freed by whoever lets go of it last, and the service manager
 * has better things to do: wait until it has let go.  One who does not answer
 * is asked once.
 */
static void forget(void *ctx, const char *name)
{
	struct fd_store *store = ctx;

	if (sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name) <= 0 ||
	    atomic_load(&store->deaf))
		return;
	if (sd_notify_barrier(0, BARRIER_USEC) < 0 &&
	    !atomic_exchange(&store->deaf, true))
		log_warn("the service manager does not answer");
}

static void inherit(struct fd_store *store)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), i;

	for (i = 0; i < n; i++) {
		const int fd = SD_LISTEN_FDS_START + i;

		if (!store->keeper) {
			forget(store, names[i]);
			close(fd);
		} else if (engram_keeper_inherit(store->keeper, names[i], fd)) {
			store->inherited = true;
			continue;
		}
		log_info("removed from the service manager's store",
			 LOG_S("name", names[i]));
	}
	for (i = 0; i < n; i++)
		free(names[i]);
	free(names);
	if (n < 0)
		log_warn("descriptors of the service manager not taken",
			 LOG_S("error", strerror(-n)));
}

enum engram_status fd_store_open(struct fd_store *store, const char *instance,
				 struct engram_backing *backing,
				 struct engram_error *err)
{
	static const struct engram_keeper_ops ops = {.keep = keep,
						     .forget = forget};
	const char *max = getenv("FDSTORE"), *manager = getenv("NOTIFY_SOCKET");

	store->there = manager && *manager;
	store->max = max ? strtoul(max, NULL, 10) : 0;
	if (backing->kind == ENGRAM_BACKING_MEMFD) {
		store->keeper = engram_keeper_new(instance, &ops, store);
		if (!store->keeper)
			return engram_error_set(err, ENGRAM_ENOMEM,
						"no memory");
		backing->keeper = store->keeper;
	}
	inherit(store);
	if (store->keeper && store->there && !store->max && !store->inherited)
		complain(store,
			 "the service manager does not say that it keeps "
			 "descriptors",
			 "set FileDescriptorStoreMax= in the unit (systemd "
			 "before 254 never says it)");
	return ENGRAM_OK;
}

void fd_store_close(struct fd_store *store)
{
	engram_keeper_free(store->keeper);
	store->keeper = NULL;
}

enum engram_status fd_store_check(const struct fd_store *store,
				  struct engram_error *err)
{
	if (!store->keeper)
		return ENGRAM_OK;
	if (!store->there || (!store->max && !store->inherited)) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "keep: a memfd has no name to be found by, "
				 "and no service manager keeps it");
		engram_error_fix(err, FIX);
		return ENGRAM_EUNSUPPORTED;
	}
	if (!atomic_load(&store->complained))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "keep: the service manager has not kept all memfds");
	engram_error_fix(err, "look into the log for why, and restart engramd");
	return ENGRAM_EUNSUPPORTED;
}
