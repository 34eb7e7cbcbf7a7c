/* SPDX-License-Identifier: Apache-2.0 */
/* The command that gives more huge pages, on a made-up machine. */
#include "fake_root.h"
#include "huge_pages.h"
#include "segment_fixture.h"

#define THP	"sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define MOUNTS	"proc/self/mounts"
#define COMPACT "sysctl vm.drop_caches=3 vm.compact_memory=1"

static void advises(const struct engram_backing *backing, const char *want)
{
	char text[256];

	huge_pages_advice(fake_root, backing, text, sizeof(text));
	CHECK_STR(text, want);
}

static struct engram_backing in(const char *dir)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_SHM};

	snprintf(backing.dir, sizeof(backing.dir), "%s", dir);
	return backing;
}

/* What is mounted where the directory is, not on the directory. */
static void test_mounts(void)
{
	const struct engram_backing shm = in("/dev/shm");
	const struct engram_backing below = in("/dev/shm/engram/x");
	const struct engram_backing beside = in("/dev/shmem");
	const struct engram_backing own = in("/mnt/own/y");

	advises(&shm, "mount -o remount,huge=within_size /dev/shm && " COMPACT);
	fake_root_put(MOUNTS, "/dev/vda / ext4 rw 0 0\n"
			      "tmpfs /dev tmpfs rw,huge=always 0 0\n"
			      "tmpfs /dev/shm tmpfs rw,nosuid 0 0\n"
			      "tmpfs /mnt/own tmpfs rw,huge=within_size 0 0\n"
			      "tmpfs /run tmpfs rw 0 0\n");
	advises(&shm, "mount -o remount,huge=within_size /dev/shm && " COMPACT);
	advises(&below,
		"mount -o remount,huge=within_size /dev/shm && " COMPACT);
	advises(&beside, COMPACT);
	advises(&own, COMPACT);
	/* Another on top of it. */
	fake_root_put(MOUNTS, "tmpfs /dev/shm tmpfs rw,huge=always 0 0\n"
			      "tmpfs /dev/shm tmpfs rw,huge=never 0 0\n");
	advises(&shm, "mount -o remount,huge=within_size /dev/shm && " COMPACT);
	fake_root_put(MOUNTS, "tmpfs /dev/shm tmpfs rw 0 0\n"
			      "tmpfs /dev/shm tmpfs rw,huge=always 0 0\n");
	advises(&shm, COMPACT);
}

/* Nothing else helps while they are denied, nor while nobody asks. */
static void test_wishes(void)
{
	struct engram_backing backing = in("/dev/shm");

	backing.huge = ENGRAM_HUGE_OFF;
	advises(&backing, "set memory.huge_pages to \"try\"");
	fake_root_put(THP, "always within_size advise never [deny] force\n");
	advises(&backing, "echo never > "
			  "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
	backing.kind = ENGRAM_BACKING_HUGETLBFS;
	advises(&backing, "");
	fake_root_put(THP, "always within_size advise [never] deny force\n");
	backing = (struct engram_backing){.kind = ENGRAM_BACKING_MEMFD};
	advises(&backing, COMPACT);
	backing.memfd_page = 2 << 20;
	advises(&backing, "");
}

int main(void)
{
	CHECK(!fake_root_make());
	test_mounts();
	test_wishes();
	CHECK(!fake_root_remove());
	return 0;
}
