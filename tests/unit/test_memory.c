/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a load fits: limits of control groups of both versions, read from
 * a made-up /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory.h"

#define MIB (UINT64_C(1) << 20)

static char root[] = "/tmp/engram-test-memory-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[512], *slash;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (slash = strchr(path + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int make_root(void **state)
{
	(void)state;
	memcpy(root + sizeof(root) - 7, "XXXXXX", 6);
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command);
}

static void test_meminfo(void **state)
{
	(void)state;
	assert_true(memory_available(root) == UINT64_MAX);
	put("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:    2048 kB\n");
	assert_true(memory_available(root) == 2 * MIB);
}

static void test_no_cgroup(void **state)
{
	char file[512];

	(void)state;
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == UINT64_MAX);
	put("proc/self/cgroup", "0::/\n");
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == UINT64_MAX);
	assert_string_equal(file, "");
}

/* The tightest ancestor counts, and page cache is room. */
static void test_report_25_limits_of_version_2(void **state)
{
	char file[512];

	(void)state;
	put("proc/self/cgroup", "0::/pod/engramd\n");
	put("sys/fs/cgroup/pod/engramd/memory.max", "max\n");
	put("sys/fs/cgroup/pod/engramd/memory.current", "1000\n");
	put("sys/fs/cgroup/pod/memory.max", "10485760\n");
	put("sys/fs/cgroup/pod/memory.current", "4194304\n");
	put("sys/fs/cgroup/pod/memory.stat",
	    "anon 1\ninactive_file 1048576\nactive_file 1048576\n");
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == 8 * MIB);
	assert_non_null(strstr(file, "/sys/fs/cgroup/pod/memory.max"));
	put("sys/fs/cgroup/pod/memory.current", "99999999\n");
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == 0);
}

static void test_report_25_limits_of_version_1(void **state)
{
	char file[512];

	(void)state;
	put("proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/docker/x\n");
	put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
	    "9223372036854771712\n");
	put("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "0\n");
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == UINT64_MAX);
	/* inside a container the own group is the root of the mount */
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "3145728\n");
	put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
	assert_true(memory_cgroup_room(root, file, sizeof(file)) == 2 * MIB);
}

/* Two loads that each fit but not together: the second is refused. */
static void test_promises(void **state)
{
	const struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	const struct memory_need need7 = {.bytes = 7 * MIB};
	const struct memory_need need4 = {.bytes = 4 * MIB};
	const struct memory_need need2 = {.bytes = 2 * MIB};
	struct loader_progress one = {0}, two = {0};
	struct memory_promise first, second;
	struct memory_ledger ledger;
	struct engram_error err;

	(void)state;
	put("proc/meminfo", "MemAvailable: 10240 kB\n");
	assert_int_equal(memory_ledger_init(&ledger, root, &err), ENGRAM_OK);
	assert_int_equal(
		memory_admit(&ledger, &memfd, &need7, &one, &first, &err),
		ENGRAM_OK);
	assert_int_equal(
		memory_admit(&ledger, &memfd, &need4, &two, &second, &err),
		ENGRAM_ENOSPACE);
	assert_true(err.needed == 4 * MIB && err.available == 3 * MIB);
	assert_string_equal(err.message,
			    "4194304 bytes are needed, and the host "
			    "(MemAvailable) has 3145728 available");
	/* What it has touched is gone from MemAvailable. */
	atomic_store(&one.bytes_touched, 2 * MIB);
	assert_int_equal(
		memory_admit(&ledger, &memfd, &need4, &two, &second, &err),
		ENGRAM_OK);
	memory_release(&ledger, &second);
	memory_release(&ledger, &first);
	put("proc/self/cgroup", "0::/\n");
	put("sys/fs/cgroup/memory.max", "1048576\n");
	put("sys/fs/cgroup/memory.current", "0\n");
	assert_int_equal(
		memory_admit(&ledger, &memfd, &need2, &two, &second, &err),
		ENGRAM_ENOSPACE);
	assert_non_null(strstr(err.message, "the control group ("));
	assert_string_equal(err.fix, "raise the memory limit of the container "
				     "or the unit");
	memory_ledger_free(&ledger);
}

/* Of huge pages the pool counts, and the group's limit of that size. */
static void test_huge_pages(void **state)
{
	char file[512];

	(void)state;
	put("proc/self/cgroup", "0::/a\n");
	put("sys/fs/cgroup/a/memory.max", "0\n");
	put("sys/fs/cgroup/a/hugetlb.2MB.max", "8388608\n");
	put("sys/fs/cgroup/a/hugetlb.2MB.current", "2097152\n");
	assert_true(memory_hugetlb_room(root, 2 * MIB, file, sizeof(file)) ==
		    6 * MIB);
	assert_non_null(strstr(file, "/a/hugetlb.2MB.max"));
	assert_true(memory_hugetlb_room(root, 1024 * MIB, file, sizeof(file)) ==
		    UINT64_MAX);
	put("proc/self/cgroup", "4:memory:/b\n5:hugetlb:/b\n");
	put("sys/fs/cgroup/hugetlb/b/hugetlb.1GB.limit_in_bytes",
	    "2147483648\n");
	put("sys/fs/cgroup/hugetlb/b/hugetlb.1GB.usage_in_bytes", "0\n");
	assert_true(memory_hugetlb_room(root, 1024 * MIB, file, sizeof(file)) ==
		    2048 * MIB);
	assert_true(memory_hugetlb_room(root, 64 << 10, file, sizeof(file)) ==
		    UINT64_MAX);
}

/* A directory that is no memory, and one without room for files. */
static void test_backing(void **state)
{
	struct engram_backing disk = {.kind = ENGRAM_BACKING_SHM};
	const struct memory_need need = {.bytes = 1, .files = UINT64_MAX};
	struct engram_backing shm = {.kind = ENGRAM_BACKING_SHM,
				     .dir = "/dev/shm"};
	struct loader_progress none = {0};
	struct memory_promise promise;
	struct memory_ledger ledger;
	struct engram_error err;

	(void)state;
	snprintf(disk.dir, sizeof(disk.dir), "/proc");
	assert_int_equal(memory_ledger_init(&ledger, root, &err), ENGRAM_OK);
	assert_int_equal(
		memory_admit(&ledger, &disk, &need, &none, &promise, &err),
		ENGRAM_EUNSUPPORTED);
	assert_string_equal(err.message,
			    "/proc is not in memory: it is no tmpfs");
	if (engram_backing_files(&shm) != UINT64_MAX) {
		assert_int_equal(memory_admit(&ledger, &shm, &need, &none,
					      &promise, &err),
				 ENGRAM_ENOSPACE);
		assert_non_null(strstr(err.message, "files are needed, and "
						    "/dev/shm has room for"));
		assert_non_null(strstr(err.fix, "nr_inodes="));
	}
	memory_ledger_free(&ledger);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
	const struct CMUnitTest tests[] = {
		TEST(test_meminfo),
		TEST(test_no_cgroup),
		TEST(test_report_25_limits_of_version_2),
		TEST(test_report_25_limits_of_version_1),
		TEST(test_promises),
		TEST(test_huge_pages),
		TEST(test_backing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
