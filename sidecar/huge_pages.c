/* SPDX-License-Identifier: Apache-2.0 */
#include "huge_pages.h"

#include <inttypes.h>
#include <mntent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Is the word in brackets, as the kernel marks what is set? */
static bool is_set(const char *root, const char *file, const char *word)
{
	char path[512], line[256] = "", want[64];
	FILE *f;

	snprintf(path, sizeof(path), "%s/sys/kernel/mm/transparent_hugepage/%s",
		 root, file);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(line, sizeof(line), f))
		line[0] = '\0';
	fclose(f);
	snprintf(want, sizeof(want), "[%s]", word);
	return strstr(line, want) != NULL;
}

/* Length of the mount's path if `dir` is in it, or 0. */
static size_t covers(const char *mount, const char *dir)
{
	const size_t len = strlen(mount);

	if (!strcmp(mount, "/"))
		return 1;
	return !strncmp(dir, mount, len) && (!dir[len] || dir[len] == '/') ? len
									   : 0;
}

/* Where the file system of `dir` is mounted; does it give huge pages to all
 * that is written there? */
static bool mount_is_huge(const char *root, const char *dir, char *at,
			  size_t size)
{
	char path[512], *option;
	const struct mntent *m;
	size_t len, longest = 0;
	bool huge = false;
	FILE *mounts;

	snprintf(at, size, "%s", dir);
	snprintf(path, sizeof(path), "%s/proc/self/mounts", root);
	mounts = setmntent(path, "re");
	if (!mounts)
		return false;
	while ((m = getmntent(mounts))) {
		len = covers(m->mnt_dir, dir);
		/* Of two in one place the last one is on top. */
		if (!len || len < longest)
			continue;
		longest = len;
		snprintf(at, size, "%s", m->mnt_dir);
		option = hasmntopt(m, "huge");
		huge = option && strncmp(option, "huge=never", 10) != 0;
	}
	endmntent(mounts);
	return huge;
}

void huge_pages_advice(const char *root, const struct engram_backing *backing,
		       char *out, size_t size)
{
	char mount[sizeof(backing->dir)];

	out[0] = '\0';
	if (backing->kind == ENGRAM_BACKING_HUGETLBFS || backing->memfd_page)
		return;
	if (is_set(root, "shmem_enabled", "deny"))
		snprintf(out, size,
			 "echo never > "
			 "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
	else if (backing->huge == ENGRAM_HUGE_OFF)
		snprintf(out, size, "set memory.huge_pages to \"try\"");
	else if (backing->kind == ENGRAM_BACKING_SHM &&
		 !mount_is_huge(root, backing->dir, mount, sizeof(mount)))
		snprintf(out, size,
			 "mount -o remount,huge=within_size %s && "
			 "sysctl vm.drop_caches=3 vm.compact_memory=1",
			 mount);
	else
		snprintf(out, size,
			 "sysctl vm.drop_caches=3 vm.compact_memory=1");
}

void huge_pages_measure(struct generation *gen,
			const struct engram_backing *backing)
{
	uint64_t mapped, huge;
	struct engram_error err;
	bool lacking = false;
	uint32_t i;

	for (i = 0; i < gen->num_segments; i++) {
		struct generation_layer *layer = &gen->layers[i];

		if (engram_segment_huge(layer->writer, &mapped, &huge, &err) ||
		    mapped < layer->header->total_bytes)
			continue;
		atomic_store(&layer->huge_bytes, huge);
		lacking |= huge < layer->header->total_bytes;
	}
	if (lacking)
		huge_pages_advice("", backing, gen->huge_advice,
				  sizeof(gen->huge_advice));
}

enum engram_status huge_pages_check(const struct generation *gen,
				    const struct engram_backing *backing,
				    struct engram_error *err)
{
	uint64_t huge;
	uint32_t i;

	if (backing->huge != ENGRAM_HUGE_REQUIRE)
		return ENGRAM_OK;
	for (i = 0; i < gen->num_segments; i++) {
		const uint64_t total = gen->layers[i].header->total_bytes;

		huge = atomic_load(&gen->layers[i].huge_bytes);
		if (huge == UINT64_MAX || huge >= total)
			continue;
		engram_error_set(err, ENGRAM_ENOSPACE,
				 "layer %d: %" PRIu64 " of %" PRIu64
				 " bytes are on huge pages, and all must be",
				 (int)gen->layers[i].layer_id, huge, total);
		engram_error_fix(err, "%s%sset memory.huge_pages to \"try\"",
				 gen->huge_advice,
				 *gen->huge_advice ? "; or " : "");
		engram_error_figures(err, total, huge);
		return ENGRAM_ENOSPACE;
	}
	return ENGRAM_OK;
}
