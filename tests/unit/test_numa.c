/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of memory: what is read of them, what is asked of the kernel, and what
 * it says of it.  With one node no page can be elsewhere; tests/numa has two.
 */
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "nodes.h"
#include "fake_root.h"
#include "numa.h"
#include "seccomp_fixture.h"

static char instance[64];
static struct engram_error err;

static void test_text(void)
{
	char text[256];

	CHECK_STR(numa_text(0, text, sizeof(text)), "");
	CHECK_STR(numa_text(1, text, sizeof(text)), "0");
	CHECK_STR(numa_text(0x8b, text, sizeof(text)), "0-1,3,7");
	CHECK_STR(numa_text(UINT64_MAX, text, sizeof(text)), "0-63");
	numa_text(0x5555555555555555, text, 16);
	CHECK(strlen(text) < 16);
}

static void test_nodes(void)
{
	struct engram_backing backing = {.numa = ENGRAM_NUMA_BIND};
	cpu_set_t cores, all;
	char list[64];
	int first = 0;

	CHECK(!fake_root_make());
	/* A kernel without nodes. */
	CHECK(numa_nodes(fake_root) == 1);
	fake_root_put("sys/devices/system/node/has_memory", "0-1,3\n");
	/* Node 3 is the memory of a device. */
	fake_root_put("sys/devices/system/node/has_cpu", "0-2\n");
	CHECK(numa_nodes(fake_root) == 3);
	CHECK_OK(numa_resolve(fake_root, &backing, &err));
	CHECK(backing.nodes == 3);
	backing.nodes = 9;
	CHECK(numa_resolve(fake_root, &backing, &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message, "node 3 of memory.numa_nodes is not there");
	CHECK_STR(err.fix, "nodes with memory and cores are 0-1");
	CHECK_STR(err.path, "memory.numa_nodes");

	/* One copy on the only node that is wanted, or that there is. */
	backing = (struct engram_backing){.numa = ENGRAM_NUMA_REPLICATE};
	CHECK_OK(numa_resolve(fake_root, &backing, &err));
	CHECK(backing.numa == ENGRAM_NUMA_REPLICATE && backing.nodes == 3);
	CHECK(numa_backing_of(&backing, 2).numa == ENGRAM_NUMA_BIND);
	CHECK(numa_backing_of(&backing, 2).nodes == 2);
	CHECK(numa_backing_of(&backing, 0).nodes == 3);
	backing.nodes = 2;
	CHECK_OK(numa_resolve(fake_root, &backing, &err));
	CHECK(backing.numa == ENGRAM_NUMA_BIND && backing.nodes == 2);
	fake_root_put("sys/devices/system/node/has_cpu", "0\n");
	backing = (struct engram_backing){.numa = ENGRAM_NUMA_REPLICATE};
	CHECK_OK(numa_resolve(fake_root, &backing, &err));
	CHECK(backing.numa == ENGRAM_NUMA_LOCAL && !backing.nodes);

	/* Node 2 is not online: the third distance is that of node 3. */
	fake_root_put("sys/devices/system/node/online", "0-1,3\n");
	fake_root_put("sys/devices/system/node/node3/distance", "31 21 10\n");
	fake_root_put("sys/devices/system/node/node0/distance", "10 21 12\n");
	CHECK(numa_nearest(fake_root, 9, 3) == 3);
	CHECK(numa_nearest(fake_root, 3, 3) == 1);
	CHECK(numa_nearest(fake_root, 10, 0) == 3);
	/* Of what is not known the lowest. */
	CHECK(numa_nearest(fake_root, 10, 1) == 1);
	CHECK(numa_nearest(fake_root, 12, 1) == 2);
	CHECK(numa_nearest(fake_root, 12, 64) == 2);

	/* One core of ours is near, the others are not. */
	CHECK(!sched_getaffinity(0, sizeof(all), &all));
	while (!CPU_ISSET(first, &all))
		first++;
	snprintf(list, sizeof(list), "%d,1020-1022\n", first);
	fake_root_put("sys/devices/system/node/node1/cpulist", list);
	fake_root_put("sys/devices/system/node/node2/cpulist", "1023\n");
	CHECK(numa_of_process(fake_root, getpid()) == 2);
	CHECK(!numa_of_process(fake_root, 0));
	CHECK(numa_cores(fake_root, 2, &cores));
	CHECK(CPU_COUNT(&cores) == 1 && CPU_ISSET(first, &cores));
	CHECK(!numa_cores(fake_root, 4, &cores));
	CHECK(!numa_cores(fake_root, 1, &cores));

	CHECK(numa_room(fake_root, 2, 0) == UINT64_MAX);
	fake_root_put("sys/devices/system/node/node1/meminfo",
		      "Node 1 MemTotal:    64 kB\nNode 1 MemFree:    8 kB\n"
		      "Node 1 Active(file):    4 kB\n");
	fake_root_put("sys/devices/system/node/node1/hugepages/"
		      "hugepages-2048kB/free_hugepages",
		      "3\n");
	CHECK(numa_room(fake_root, 2, 0) == 12 << 10);
	CHECK(numa_room(fake_root, 2, 2 << 20) == 6 << 20);
	CHECK(!fake_root_remove());
}

/* The kernel interleaves by the number of the small page and that of the
 * inode; from one huge page to the next, the node must change. */
static void test_turns(void)
{
	static const uint64_t masks[] = {1, 3, 7, 0xf, 0x1f, 0x15};
	struct engram_segment_writer w = {
		.backing = {.numa = ENGRAM_NUMA_INTERLEAVE}};
	uint64_t count, inode, turn, page;
	unsigned int i;

	for (i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		w.backing.nodes = masks[i];
		count = (uint64_t)__builtin_popcountll(masks[i]);
		for (inode = 5; inode < 8; inode++)
			for (turn = 0; turn < 40; turn++) {
				page = segment_turn_page(&w, turn << 21);
				CHECK(page < 512);
				page += turn << 9;
				CHECK((inode + page) % count ==
				      (inode + turn) % count);
			}
	}
	w.backing.numa = ENGRAM_NUMA_BIND;
	CHECK(segment_turn_page(&w, 3 << 21) == 0);
}

/* As the kernel has it for the address. */
static int policy_at(void *at, unsigned long *nodes)
{
	unsigned long mask[16] = {0};
	int mode = -1;

	CHECK(!syscall(SYS_get_mempolicy, &mode, mask, sizeof(mask) * 8, at,
		       MPOL_F_ADDR));
	*nodes = mask[0];
	return mode;
}

static void make(const struct engram_backing *backing)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_segment_writer *w;
	uint64_t bytes[ENGRAM_NODES], total, sum = 0;
	unsigned long nodes;
	unsigned int i;
	int mode;

	CHECK_OK(engram_segment_create(backing, &spec, &w, &err));
	total = engram_segment_writer_header(w)->total_bytes;
	CHECK_OK(engram_segment_reserve(w, 0, total, &err));
	mode = policy_at(engram_segment_writer_base(w), &nodes);
	CHECK(mode == (backing->numa == ENGRAM_NUMA_BIND ? MPOL_BIND
		       : backing->numa == ENGRAM_NUMA_INTERLEAVE
			       ? MPOL_INTERLEAVE
		       : backing->numa == ENGRAM_NUMA_PREFER ? MPOL_PREFERRED
							     : MPOL_DEFAULT));
	if (mode != MPOL_DEFAULT)
		CHECK(nodes == backing->nodes);
	CHECK_OK(engram_segment_nodes(w, bytes, &err));
	for (i = 0; i < ENGRAM_NODES; i++)
		sum += bytes[i];
	CHECK(sum == total);
	if (backing->numa == ENGRAM_NUMA_BIND)
		for (i = 0; i < ENGRAM_NODES; i++)
			CHECK(!bytes[i] || backing->nodes >> i & 1);
	engram_segment_discard(w);
}

static void test_policies(void)
{
	static const enum engram_numa all[] = {
		ENGRAM_NUMA_LOCAL, ENGRAM_NUMA_BIND, ENGRAM_NUMA_INTERLEAVE,
		ENGRAM_NUMA_PREFER};
	struct engram_backing backings[] = {fixture_shm(),
					    {.kind = ENGRAM_BACKING_MEMFD}};
	unsigned int i, k, huge;

	for (i = 0; i < 4; i++)
		for (k = 0; k < 2; k++)
			for (huge = 0; huge < 2; huge++) {
				backings[k].numa = all[i];
				backings[k].nodes = 1;
				backings[k].huge = huge ? ENGRAM_HUGE_TRY
							: ENGRAM_HUGE_OFF;
				make(&backings[k]);
			}
	CHECK(!count_names("/dev/shm", instance));
}

static enum engram_status refused(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_backing backing = fixture_shm();
	struct engram_segment_writer *w;
	enum engram_status status;

	backing.numa = ENGRAM_NUMA_BIND;
	backing.nodes = UINT64_C(1) << 63;
	status = engram_segment_create(&backing, &spec, &w, &err);
	CHECK(status && !count_names("/dev/shm", instance));
	return status;
}

/* A node that there is not, and Docker's profile, where mbind is EPERM. */
static void test_refused(void)
{
	pid_t pid;
	int status;

	refused();
	CHECK(strstr(err.message, "mbind to nodes 0x8000000000000000: "));
	CHECK(strstr(err.fix, "memory.numa_nodes"));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		deny_call(__NR_mbind);
		CHECK(refused() == ENGRAM_EPERM);
		CHECK(strstr(err.fix, "--cap-add SYS_NICE"));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(void)
{
	fixture_instance(instance, "numa");
	test_text();
	test_nodes();
	test_turns();
	if (access("/proc/self/numa_maps", R_OK)) {
		printf("skipped: the kernel knows no nodes of memory\n");
		return 77;
	}
	test_policies();
	test_refused();
	return 0;
}
