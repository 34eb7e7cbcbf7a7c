/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing.h"
#include "keeper.h"

struct list {
	struct engram_segment_entry *entries;
	size_t count, room;
};

static int append(struct list *list, const struct engram_segment_entry *e)
{
	if (list->count == list->room) {
		const size_t room = list->room ? 2 * list->room : 16;
		void *more =
			realloc(list->entries, room * sizeof(*list->entries));

		if (!more)
			return 0;
		list->entries = more;
		list->room = room;
	}
	list->entries[list->count++] = *e;
	return 1;
}

static enum engram_status read_names(DIR *dir, const char *instance,
				     struct list *list,
				     struct engram_error *err)
{
	struct engram_segment_entry entry;
	struct dirent *name;
	struct stat st;

	while (errno = 0, (name = readdir(dir))) {
		if (!segment_name_parse(name->d_name, &entry) ||
		    (instance && strcmp(instance, entry.instance)))
			continue;
		if (fstatat(dirfd(dir), name->d_name, &st,
			    AT_SYMLINK_NOFOLLOW)) {
			if (errno == ENOENT) /* it went away meanwhile */
				continue;
			return engram_error_sys(err, errno, "fstatat %s",
						name->d_name);
		}
		/* A link or a folder of that name is nobody's segment. */
		if (!S_ISREG(st.st_mode))
			continue;
		entry.bytes = (uint64_t)st.st_blocks * 512;
		if (!append(list, &entry))
			return engram_error_sys(err, ENOMEM, "list segments");
	}
	return errno ? engram_error_sys(err, errno, "readdir") : ENGRAM_OK;
}

static enum engram_status list_kept(struct engram_keeper *keeper,
				    const char *instance,
				    struct engram_segment_entry **entries,
				    size_t *count, struct engram_error *err)
{
	enum engram_status status;
	size_t all, i, n = 0;

	if (!keeper_list(keeper, entries, &all)) {
		status = engram_error_sys(err, ENOMEM, "list memfds");
		engram_error_fix(err, "free some memory");
		return status;
	}
	for (i = 0; i < all; i++)
		if (!instance || !strcmp(instance, (*entries)[i].instance))
			(*entries)[n++] = (*entries)[i];
	*count = n;
	return ENGRAM_OK;
}

enum engram_status engram_segment_list(const struct engram_backing *backing,
				       const char *instance,
				       struct engram_segment_entry **entries,
				       size_t *count, struct engram_error *err)
{
	struct list list = {0};
	enum engram_status status;
	DIR *dir;

	*entries = NULL;
	*count = 0;
	if (backing->kind == ENGRAM_BACKING_MEMFD)
		return list_kept(backing->keeper, instance, entries, count,
				 err);
	dir = opendir(backing->dir);
	if (!dir) {
		status = engram_error_sys(err, errno, "open %s", backing->dir);
		engram_error_fix(err, "check that it is mounted and readable");
		engram_error_path(err, "%s", backing->dir);
		return status;
	}
	status = read_names(dir, instance, &list, err);
	closedir(dir);
	if (status) {
		engram_error_context(err, "%s", backing->dir);
		engram_error_fix(err, status == ENGRAM_ENOMEM
					      ? "free some memory"
					      : "check that it is mounted and "
						"readable");
		free(list.entries);
		return status;
	}
	*entries = list.entries;
	*count = list.count;
	return ENGRAM_OK;
}

enum engram_status engram_segment_remove(const struct engram_backing *backing,
					 const char *name,
					 struct engram_error *err)
{
	struct engram_segment_entry entry;
	char path[SEGMENT_PATH_MAX];
	enum engram_status status;

	if (!segment_name_parse(name, &entry)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "\"%s\" is not a name of engramd's", name);
		engram_error_fix(err, "remove only what a listing shows");
		return ENGRAM_EINVAL;
	}
	if (backing->kind == ENGRAM_BACKING_MEMFD && backing->keeper) {
		keeper_forget(backing->keeper, name);
		return ENGRAM_OK;
	}
	status = backing_path(path, backing, name, err);
	if (status)
		return status;
	if (!unlink(path) || errno == ENOENT)
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "unlink %s", path);
	engram_error_fix(err, "run as the user who owns it");
	engram_error_path(err, "%s", path);
	return status;
}
