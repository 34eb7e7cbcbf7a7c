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

#include "fake_root.h"
#include "memory.h"

#define MIB (UINT64_C(1) << 20)

static int make_root(void **state)
{
	(void)state;
	return fake_root_make();
}

static int remove_root(void **state)
{
	(void)state;
	return fake_root_remove();
}

static void test_meminfo(void **state)
{
	(void)state;
	assert_true(memory_available(fake_root) == UINT64_MAX);
	fake_root_put("proc/meminfo",
		      "MemTotal: 100 kB\nMemAvailable:    2048 kB\n");
	assert_true(memory_available(fake_root) == 2 * MIB);
}

static void test_no_cgroup(void **state)
{
	char file[512];

	(void)state;
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) ==
		    UINT64_MAX);
	fake_root_put("proc/self/cgroup", "0::/\n");
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) ==
		    UINT64_MAX);
	assert_string_equal(file, "");
}

/* The tightest ancestor counts, and page cache is room. */
static void test_report_25_limits_of_version_2(void **state)
{
	char file[512];

	(void)state;
	fake_root_put("proc/self/cgroup", "0::/pod/engramd\n");
	fake_root_put("sys/fs/cgroup/pod/engramd/memory.max", "max\n");
	fake_root_put("sys/fs/cgroup/pod/engramd/memory.current", "1000\n");
	fake_root_put("sys/fs/cgroup/pod/memory.max", "10485760\n");
	fake_root_put("sys/fs/cgroup/pod/memory.current", "4194304\n");
	fake_root_put("sys/fs/cgroup/pod/memory.stat",
		      "anon 1\ninactive_file 1048576\nactive_file 1048576\n");
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) ==
		    8 * MIB);
	assert_non_null(strstr(file, "/sys/fs/cgroup/pod/memory.max"));
	fake_root_put("sys/fs/cgroup/pod/memory.current", "99999999\n");
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) == 0);
}

static void test_report_25_limits_of_version_1(void **state)
{
	char file[512];

	(void)state;
	fake_root_put("proc/self/cgroup",
		      "3:cpu,cpuacct:/a\n2:memory:/docker/x\n");
	fake_root_put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
		      "9223372036854771712\n");
	fake_root_put("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes",
		      "0\n");
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) ==
		    UINT64_MAX);
	/* inside a container the own group is the root of the mount */
	fake_root_put("sys/fs/cgroup/memory/memory.limit_in_bytes",
		      "3145728\n");
	fake_root_put("sys/fs/cgroup/memory/memory.usage_in_bytes",
		      "1048576\n");
	assert_true(memory_cgroup_room(fake_root, file, sizeof(file)) ==
		    2 * MIB);
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
	fake_root_put("proc/meminfo", "MemAvailable: 10240 kB\n");
	assert_int_equal(memory_ledger_init(&ledger, fake_root, &err),
			 ENGRAM_OK);
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
	fake_root_put("proc/self/cgroup", "0::/\n");
	fake_root_put("sys/fs/cgroup/memory.max", "1048576\n");
	fake_root_put("sys/fs/cgroup/memory.current", "0\n");
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
	fake_root_put("proc/self/cgroup", "0::/a\n");
	fake_root_put("sys/fs/cgroup/a/memory.max", "0\n");
	fake_root_put("sys/fs/cgroup/a/hugetlb.2MB.max", "8388608\n");
	fake_root_put("sys/fs/cgroup/a/hugetlb.2MB.current", "2097152\n");
	assert_true(memory_hugetlb_room(fake_root, 2 * MIB, file,
					sizeof(file)) == 6 * MIB);
	assert_non_null(strstr(file, "/a/hugetlb.2MB.max"));
	assert_true(memory_hugetlb_room(fake_root, 1024 * MIB, file,
					sizeof(file)) == UINT64_MAX);
	fake_root_put("proc/self/cgroup", "4:memory:/b\n5:hugetlb:/b\n");
	fake_root_put("sys/fs/cgroup/hugetlb/b/hugetlb.1GB.limit_in_bytes",
		      "2147483648\n");
	fake_root_put("sys/fs/cgroup/hugetlb/b/hugetlb.1GB.usage_in_bytes",
		      "0\n");
	assert_true(memory_hugetlb_room(fake_root, 1024 * MIB, file,
					sizeof(file)) == 2048 * MIB);
	assert_true(memory_hugetlb_room(fake_root, 64 << 10, file,
					sizeof(file)) == UINT64_MAX);
}

/* What is bound to nodes has to fit there. */
static void test_nodes(void **state)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD,
					 .numa = ENGRAM_NUMA_BIND,
					 .nodes = 2};
	const struct memory_need need = {.bytes = 4 * MIB};
	struct loader_progress none = {0};
	struct memory_promise promise;
	struct memory_ledger ledger;
	struct engram_error err;

	(void)state;
	fake_root_put("proc/meminfo", "MemAvailable: 102400 kB\n");
	fake_root_put("sys/devices/system/node/node1/meminfo",
		      "\nNode 1 MemTotal:       9000 kB\n"
		      "Node 1 MemFree:        1024 kB\n"
		      "Node 1 Active(file):   1024 kB\n"
		      "Node 1 Inactive(file): 1024 kB\n");
	assert_int_equal(memory_ledger_init(&ledger, fake_root, &err),
			 ENGRAM_OK);
	assert_int_equal(
		memory_admit(&ledger, &backing, &need, &none, &promise, &err),
		ENGRAM_ENOSPACE);
	assert_string_equal(err.message, "4194304 bytes are needed, and node 1 "
					 "has 3145728 available");
	backing.numa = ENGRAM_NUMA_INTERLEAVE;
	assert_int_equal(
		memory_admit(&ledger, &backing, &need, &none, &promise, &err),
		ENGRAM_OK);
	memory_release(&ledger, &promise);
	/* Nothing is known of that one. */
	backing.numa = ENGRAM_NUMA_BIND;
	backing.nodes = 4;
	assert_int_equal(
		memory_admit(&ledger, &backing, &need, &none, &promise, &err),
		ENGRAM_OK);
	memory_release(&ledger, &promise);
	memory_ledger_free(&ledger);
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
	assert_int_equal(memory_ledger_init(&ledger, fake_root, &err),
			 ENGRAM_OK);
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
		TEST(test_nodes),
		TEST(test_backing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
