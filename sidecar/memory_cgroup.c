/* SPDX-License-Identifier: Apache-2.0 */
/* What the limits of control groups leave, of either version. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory_files.h"

/* The number after `key` in a file of "KEY VALUE" lines. */
bool memory_read_key(const char *file, const char *key, unsigned int base,
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

/* Names in a version's directories.  Page cache is in the usage of memory, and
 * there are no such keys for hugetlb. */
struct cgroup_files {
	char limit[48], usage[48];
	const char *inactive, *active;
};

/* Of one controller. */
struct cgroup_kind {
	const char *controller; /* of version 1 */
	struct cgroup_files version_1, version_2;
};

static const struct cgroup_kind memory = {
	.controller = "memory",
	.version_2 = {"memory.max", "memory.current", "inactive_file ",
		      "active_file "},
	.version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
		      "total_inactive_file ", "total_active_file "},
};

/* As the kernel calls sizes of pages: 2MB, 1GB. */
static void page_name(char out[16], uint64_t page_bytes)
{
	if (page_bytes >> 30)
		snprintf(out, 16, "%uGB", (unsigned int)(page_bytes >> 30));
	else if (page_bytes >> 20)
		snprintf(out, 16, "%uMB", (unsigned int)(page_bytes >> 20));
	else
		snprintf(out, 16, "%uKB", (unsigned int)(page_bytes >> 10));
}

static struct cgroup_kind hugetlb(uint64_t page_bytes)
{
	struct cgroup_kind kind = {.controller = "hugetlb"};
	char page[16];

	page_name(page, page_bytes);
	snprintf(kind.version_2.limit, sizeof(kind.version_2.limit),
		 "hugetlb.%s.max", page);
	snprintf(kind.version_2.usage, sizeof(kind.version_2.usage),
		 "hugetlb.%s.current", page);
	snprintf(kind.version_1.limit, sizeof(kind.version_1.limit),
		 "hugetlb.%s.limit_in_bytes", page);
	snprintf(kind.version_1.usage, sizeof(kind.version_1.usage),
		 "hugetlb.%s.usage_in_bytes", page);
	return kind;
}

/* Room in one group; page cache counts as room, as the kernel drops it
 * before it refuses. */
static uint64_t group_room(const char *dir, const struct cgroup_files *files,
			   char *limit_file, size_t size)
{
	uint64_t limit, usage, cache = 0, part;
	char file[1200];

	snprintf(limit_file, size, "%s/%s", dir, files->limit);
	if (!memory_read_key(limit_file, "", 10, &limit))
		return UINT64_MAX;
	/* "max" reads as 0; version 1 says "no limit" by a huge number. */
	if (limit == 0 || limit >= UINT64_C(1) << 62)
		return UINT64_MAX;
	snprintf(file, sizeof(file), "%s/%s", dir, files->usage);
	if (!memory_read_key(file, "", 10, &usage))
		return UINT64_MAX;
	snprintf(file, sizeof(file), "%s/memory.stat", dir);
	if (files->inactive &&
	    memory_read_key(file, files->inactive, 10, &part))
		cache += part;
	if (files->active && memory_read_key(file, files->active, 10, &part))
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
static uint64_t line_room(const char *root, const struct cgroup_kind *kind,
			  char *line, char *file, size_t file_size)
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
		return walk_groups(mount, path, &kind->version_2, file,
				   file_size);
	}
	for (name = strtok_r(controllers, ",", &save); name;
	     name = strtok_r(NULL, ",", &save)) {
		if (strcmp(name, kind->controller) != 0)
			continue;
		snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/%s", root,
			 kind->controller);
		return walk_groups(mount, path, &kind->version_1, file,
				   file_size);
	}
	return UINT64_MAX;
}

static uint64_t least_room(const char *root, const struct cgroup_kind *kind,
			   char *file, size_t file_size)
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
		here = line_room(root, kind, line, tightest, sizeof(tightest));
		if (here < room) {
			room = here;
			snprintf(file, file_size, "%s", tightest);
		}
	}
	fclose(f);
	return room;
}

uint64_t memory_cgroup_room(const char *root, char *file, size_t file_size)
{
	return least_room(root, &memory, file, file_size);
}

uint64_t memory_hugetlb_room(const char *root, uint64_t page_bytes, char *file,
			     size_t file_size)
{
	const struct cgroup_kind kind = hugetlb(page_bytes);

	return least_room(root, &kind, file, file_size);
}
