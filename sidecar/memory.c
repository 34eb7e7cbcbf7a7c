/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "memory.h"

enum engram_status memory_ledger_init(struct memory_ledger *ledger,
				      const char *root,
				      struct engram_error *err)
{
	int rc = pthread_mutex_init(&ledger->lock, NULL);

	if (rc)
		return engram_error_sys(err, rc, "memory ledger: mutex");
	LIST_INIT(&ledger->promises);
	ledger->root = root;
	return ENGRAM_OK;
}

void memory_ledger_free(struct memory_ledger *ledger)
{
	pthread_mutex_destroy(&ledger->lock);
}

/* The number after `key` in a file of "KEY VALUE" lines. */
static bool read_key(const char *file, const char *key, unsigned int base,
		     uint64_t *value)
{
	char line[256];
	size_t len = strlen(key);
	bool found = false;
	FILE *f = fopen(file, "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, len) != 0)
			continue;
		errno = 0;
		*value = strtoull(line + len, NULL, (int)base);
		found = errno == 0;
	}
	fclose(f);
	return found;
}

uint64_t memory_available(const char *root)
{
	char file[512];
	uint64_t kib;

	snprintf(file, sizeof(file), "%s/proc/meminfo", root);
	return read_key(file, "MemAvailable:", 10, &kib) ? kib * 1024
							 : UINT64_MAX;
}

struct cgroup_files {
	const char *limit, *usage, *inactive, *active;
};

static const struct cgroup_files version_2 = {"memory.max", "memory.current",
					      "inactive_file ", "active_file "};
static const struct cgroup_files version_1 = {
	"memory.limit_in_bytes", "memory.usage_in_bytes",
	"total_inactive_file ", "total_active_file "};

/* Room in one group; page cache counts as room, as the kernel drops it
 * before it refuses. */
static uint64_t group_room(const char *dir, const struct cgroup_files *files,
			   char *limit_file, size_t size)
{
	uint64_t limit, usage, cache = 0, part;
	char file[1200];

	snprintf(limit_file, size, "%s/%s", dir, files->limit);
	if (!read_key(limit_file, "", 10, &limit))
		return UINT64_MAX;
	/* "max" reads as 0; version 1 says "no limit" by a huge number. */
	if (limit == 0 || limit >= UINT64_C(1) << 62)
		return UINT64_MAX;
	snprintf(file, sizeof(file), "%s/%s", dir, files->usage);
	if (!read_key(file, "", 10, &usage))
		return UINT64_MAX;
	snprintf(file, sizeof(file), "%s/memory.stat", dir);
	if (read_key(file, files->inactive, 10, &part))
		cache += part;
	if (read_key(file, files->active, 10, &part))
		cache += part;
	usage -= cache < usage ? cache : usage;
	return usage < limit ? limit - usage : 0;
}

/* The group and its ancestors up to the mount. */
static uint64_t walk_groups(const char *mount, char *path,
			    const struct cgroup_files *files, char *tightest,
			    size_t size)
{
	uint64_t room = UINT64_MAX, here;
	char dir[1024], file[1200];
	char *slash;

	for (;;) {
		snprintf(dir, sizeof(dir), "%s%s", mount,
			 strcmp(path, "/") ? path : "");
		here = group_room(dir, files, file, sizeof(file));
		if (here < room) {
			room = here;
			snprintf(tightest, size, "%.*s", (int)size - 1, file);
		}
		slash = strrchr(path, '/');
		if (!slash)
			return room;
		*slash = '\0';
	}
}

/* "0::/path" is version 2; "N:...,memory,...:/path" is version 1. */
static uint64_t line_room(const char *root, char *line, char *file,
			  size_t file_size)
{
	char mount[512];
	char *controllers = strchr(line, ':');
	char *path = controllers ? strchr(controllers + 1, ':') : NULL;
	char *name, *save;

	if (!path)
		return UINT64_MAX;
	*path++ = '\0';
	path[strcspn(path, "\n")] = '\0';
	controllers++;
	if (!*controllers) {
		snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
		return walk_groups(mount, path, &version_2, file, file_size);
	}
	for (name = strtok_r(controllers, ",", &save); name;
	     name = strtok_r(NULL, ",", &save)) {
		if (strcmp(name, "memory") != 0)
			continue;
		snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/memory", root);
		return walk_groups(mount, path, &version_1, file, file_size);
	}
	return UINT64_MAX;
}

uint64_t memory_cgroup_room(const char *root, char *file, size_t file_size)
{
	uint64_t room = UINT64_MAX, here;
	char name[512], line[1024], tightest[512] = "";
	FILE *f;

	file[0] = '\0';
	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	f = fopen(name, "re");
	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f)) {
		here = line_room(root, line, tightest, sizeof(tightest));
		if (here < room) {
			room = here;
			snprintf(file, file_size, "%s", tightest);
		}
	}
	fclose(f);
	return room;
}

static uint64_t outstanding(const struct memory_ledger *ledger)
{
	const struct memory_promise *promise;
	uint64_t bytes = 0, done;

	LIST_FOREACH(promise, &ledger->promises, entry)
	{
		done = atomic_load(&promise->progress->bytes_done);
		bytes += done < promise->bytes ? promise->bytes - done : 0;
	}
	return bytes;
}

static enum engram_status check(const char *what, const char *fix,
				uint64_t bytes, uint64_t promised,
				uint64_t room, struct engram_error *err)
{
	uint64_t available = room > promised ? room - promised : 0;

	if (room == UINT64_MAX || bytes <= available)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "%" PRIu64 " bytes are needed, and %s has %" PRIu64
			 " available",
			 bytes, what, available);
	engram_error_fix(err, "%s", fix);
	engram_error_figures(err, bytes, available);
	return ENGRAM_ENOSPACE;
}

static enum engram_status check_all(const struct memory_ledger *ledger,
				    const struct engram_backing *backing,
				    uint64_t bytes, struct engram_error *err)
{
	uint64_t promised = outstanding(ledger), room;
	char what[768], file[512];
	enum engram_status status;

	if (backing->kind != ENGRAM_BACKING_MEMFD) {
		status = engram_backing_room(backing, &room, err);
		if (status)
			return status;
		snprintf(what, sizeof(what), "%s", backing->dir);
		status = check(what,
			       "unload another table, or make the file system "
			       "larger (docker: --shm-size)",
			       bytes, promised, room, err);
		if (status)
			return status;
	}
	/* Huge pages were set aside before; neither limit counts them. */
	if (backing->kind == ENGRAM_BACKING_HUGETLBFS)
		return ENGRAM_OK;
	status = check("the host (MemAvailable)",
		       "free memory on the host, or load fewer layers", bytes,
		       promised, memory_available(ledger->root), err);
	if (status)
		return status;
	room = memory_cgroup_room(ledger->root, file, sizeof(file));
	snprintf(what, sizeof(what), "the control group (%s)", file);
	return check(what,
		     "raise the memory limit of the container or the unit",
		     bytes, promised, room, err);
}

enum engram_status memory_admit(struct memory_ledger *ledger,
				const struct engram_backing *backing,
				uint64_t bytes,
				const struct loader_progress *progress,
				struct memory_promise *promise,
				struct engram_error *err)
{
	enum engram_status status;

	promise->bytes = bytes;
	promise->progress = progress;
	pthread_mutex_lock(&ledger->lock);
	status = check_all(ledger, backing, bytes, err);
	if (!status)
		LIST_INSERT_HEAD(&ledger->promises, promise, entry);
	pthread_mutex_unlock(&ledger->lock);
	return status;
}

void memory_release(struct memory_ledger *ledger,
		    struct memory_promise *promise)
{
	pthread_mutex_lock(&ledger->lock);
	LIST_REMOVE(promise, entry);
	pthread_mutex_unlock(&ledger->lock);
}

uint64_t memory_locked(void)
{
	uint64_t kib;

	return read_key("/proc/self/status", "VmLck:", 10, &kib) ? kib * 1024
								 : 0;
}

enum engram_status memory_lockable(uint64_t bytes, struct engram_error *err)
{
	struct rlimit limit;
	uint64_t caps = 0, locked, room;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return engram_error_sys(err, errno, "getrlimit(MEMLOCK)");
	if (limit.rlim_cur == RLIM_INFINITY)
		return ENGRAM_OK;
	/* Who may lock without limit is not bound by it. */
	if (read_key("/proc/self/status", "CapEff:", 16, &caps) &&
	    caps & UINT64_C(1) << CAP_IPC_LOCK)
		return ENGRAM_OK;
	locked = memory_locked();
	room = limit.rlim_cur > locked ? limit.rlim_cur - locked : 0;
	if (bytes <= room)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EMEMLOCK,
			 "%" PRIu64 " bytes are to be locked, and "
			 "RLIMIT_MEMLOCK leaves %" PRIu64,
			 bytes, room);
	engram_error_fix(err, "set LimitMEMLOCK=infinity in the unit (docker: "
			      "--ulimit memlock=-1), or memory.lock to "
			      "\"try\"");
	engram_error_figures(err, bytes, room);
	return ENGRAM_EMEMLOCK;
}
