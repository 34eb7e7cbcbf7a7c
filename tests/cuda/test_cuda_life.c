/* SPDX-License-Identifier: Apache-2.0 */
/* A handle that is not ready yet, devices that can do less, tables that have
 * less. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "fake_cuda.h"
#include "setting.h"
#include "table.h"

static const struct engram_attach_params demo = {.table = "demo"};
static const struct engram_cuda_attach_params small_chunks = {
	.device = -1, .chunk_bytes = 4096};

static engram_cuda_table *attach_held(struct setting *s)
{
	engram_cuda_table *t;

	fake_cuda_reset();
	fake_cuda.hold = 1;
	assert_int_equal(
		engram_cuda_attach(s->client, &demo, &small_chunks, &t),
		ENGRAM_OK);
	fake_cuda_await_held();
	return t;
}

static void check_all_gone(void)
{
	assert_int_equal(fake_cuda.num_ranges, 0);
	assert_int_equal(fake_cuda.allocations, 0);
	assert_int_equal(fake_cuda.streams, 0);
	assert_int_equal(fake_cuda.pending_errors, 0);
}

/* ---- before it is ready ---- */

static void not_ready(void **state)
{
	struct engram_cuda_lookup_params lookup = {0};
	engram_cuda_table *t = attach_held(*state);
	struct engram_cuda_progress progress;
	struct engram_cuda_source source;
	struct engram_hash_params hash;
	struct engram_hash_batch batch = {0};

	assert_int_equal(engram_cuda_progress(t, &progress), ENGRAM_OK);
	assert_int_equal(progress.ready, 0);
	assert_int_equal(progress.status, ENGRAM_OK);
	assert_int_equal(progress.done_bytes, 0);
	assert_int_equal(engram_cuda_table_lookup(t, 0, &lookup, NULL, NULL),
			 ENGRAM_ENOTREADY);
	assert_int_equal(engram_last_error()->needed, progress.total_bytes);
	assert_int_equal(engram_last_error()->available, 0);
	assert_non_null(strstr(engram_last_error()->fix, "engram_cuda_wait"));
	assert_int_equal(
		engram_cuda_table_lookup_raw(t, 0, &lookup, NULL, NULL),
		ENGRAM_ENOTREADY);
	assert_int_equal(engram_cuda_table_hash(t, &batch, NULL, NULL),
			 ENGRAM_ENOTREADY);
	assert_int_equal(engram_cuda_hash_params(t, &hash), ENGRAM_ENOTREADY);
	assert_int_equal(engram_cuda_layer_source(t, 0, &source),
			 ENGRAM_ENOTREADY);
	for (int ms = 0; ms <= 20; ms += 10) {
		assert_int_equal(engram_cuda_wait(t, ms), ENGRAM_ETIMEDOUT);
		assert_non_null(engram_last_error()->fix[0] ? "" : NULL);
	}
	fake_cuda_release();
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_OK);
	assert_int_equal(engram_cuda_wait(t, 0), ENGRAM_OK);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_all_gone();
}

/* Let the registration go on when it has been cancelled. */
static void *release_cancelled(void *arg)
{
	engram_cuda_table *t = arg;

	while (!atomic_load(&t->cancel))
		sched_yield();
	fake_cuda_release();
	return NULL;
}

static void detached_while_registering(void **state)
{
	engram_cuda_table *t = attach_held(*state);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, release_cancelled, t),
			 0);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	pthread_join(thread, NULL);
	/* the one that was under way, and no more */
	assert_int_equal(fake_cuda.registered_ever, 1);
	check_all_gone();
}

static void *wait_for(void *arg)
{
	return engram_cuda_wait(arg, -1) ? NULL : arg;
}

static void many_wait(void **state)
{
	engram_cuda_table *t = attach_held(*state);
	pthread_t threads[4];
	void *result;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for, t),
				 0);
	fake_cuda_release();
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		assert_ptr_equal(result, t);
	}
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

/* The child has neither the thread nor the memory; the parent has both. */
static void forked_while_registering(void **state)
{
	engram_cuda_table *t = attach_held(*state);
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(engram_cuda_wait(t, -1) == ENGRAM_EINVAL &&
				      engram_cuda_detach(t) == ENGRAM_EINVAL
			      ? 0
			      : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(fake_cuda.num_ranges, 0);
	fake_cuda_release();
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_OK);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_all_gone();
}

/* ---- devices ---- */

static void cannot_register(struct setting *s)
{
	const struct engram_cuda_attach_params copied = {
		.device = -1, .placement = ENGRAM_CUDA_DEVICE};
	engram_cuda_table *t;

	assert_int_equal(engram_cuda_attach(s->client, &demo, NULL, &t),
			 ENGRAM_EUNSUPPORTED);
	assert_non_null(strstr(engram_last_error()->fix, "ENGRAM_CUDA_DEVICE"));
	check_all_gone();
	t = setting_attach(s, 0, 1, &copied);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	assert_int_equal(fake_cuda.registered_ever, 0);
	check_all_gone();
}

static void memory_seen_elsewhere(void **state)
{
	struct setting *s = *state;
	engram_cuda_table *t;

	fake_cuda_reset();
	fake_cuda.same_address = 0;
	cannot_register(s);
	fake_cuda_reset();
	fake_cuda.registers = 0;
	cannot_register(s);
	/* it says that it would, and does not */
	fake_cuda_reset();
	fake_cuda.same_address = 2;
	assert_int_equal(engram_cuda_attach(s->client, &demo, NULL, &t),
			 ENGRAM_OK);
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_EUNSUPPORTED);
	assert_non_null(strstr(engram_last_error()->fix, "ENGRAM_CUDA_DEVICE"));
	assert_int_equal(fake_cuda.registered_ever, 1);
	assert_int_equal(fake_cuda.num_ranges, 0);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_all_gone();
}

static void no_read_only_registration(void **state)
{
	struct setting *s = *state;
	struct engram_layer_info layer;
	struct engram_cuda_info info;
	engram_cuda_table *t;
	char mode[8];

	fake_cuda_reset();
	fake_cuda.read_only = 0;
	t = setting_attach(s, 0, 1, &small_chunks);
	assert_int_equal(s->fake.writable, 1);
	for (uint32_t i = 0; i < FAKE_LAYERS; i++) {
		engram_layer_info(engram_cuda_host_table(t), i, &layer);
		for (uint32_t m = 0; m < layer.num_mappings; m++) {
			permissions(layer.mapping[m].address, mode);
			assert_string_equal(mode, "r--s");
		}
	}
	assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
	assert_int_equal(info.read_only, 0);
	for (int i = 0; i < fake_cuda.num_ranges; i++)
		assert_int_equal(fake_cuda.ranges[i].flags,
				 cudaHostRegisterMapped);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_all_gone();
}

/* A context takes hundreds of MiB: none is started on another device. */
static void on_another_device(void **state)
{
	struct engram_cuda_attach_params cuda = {.device = -1};
	struct engram_cuda_info info;
	engram_cuda_table *t;
	int device;

	fake_cuda_reset();
	assert_int_equal(cudaSetDevice(1), cudaSuccess);
	for (cuda.device = -1; cuda.device <= 1; cuda.device += 2) {
		t = setting_attach(*state, 0, 1, &cuda);
		assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
		assert_int_equal(info.device, 1);
		check_use(t);
		assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
		assert_int_equal(fake_cuda.contexts, 1 << 1);
	}
	/* and the caller finds its own device again */
	cuda.device = 0;
	t = setting_attach(*state, 0, 1, &cuda);
	assert_int_equal(cudaGetDevice(&device), cudaSuccess);
	assert_int_equal(device, 1);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	assert_int_equal(cudaGetDevice(&device), cudaSuccess);
	assert_int_equal(device, 1);
	fake_cuda_reset();
}

/* ---- tables ---- */

static void no_token_map(void **state)
{
	engram_cuda_table *t;
	struct engram_hash_batch batch = {0};
	struct engram_hash_params params;

	fake_cuda_reset();
	t = setting_attach(*state, 1, 3, NULL);
	assert_int_equal(engram_cuda_table_hash(t, &batch, NULL, NULL),
			 ENGRAM_ENOTOKENMAP);
	assert_int_equal(engram_cuda_hash_params(t, &params),
			 ENGRAM_ENOTOKENMAP);
	check_rows(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_all_gone();
}

/* Where this thread's next mapping goes; NULL: anywhere. */
static _Thread_local char *next_mapping;

void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd,
		  off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd,
		  off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd,
		  off_t offset)
{
	if (next_mapping) {
		at = next_mapping;
		flags |= MAP_FIXED;
		next_mapping += (bytes + 4095) / 4096 * 4096;
	}
	return __real_mmap(at, bytes, prot, flags, fd, offset);
}

/* As with a legacy layout of memory: scales begin where the codes end. */
static void adjacent_mappings(void **state)
{
	const struct engram_cuda_attach_params copied = {
		.device = -1, .placement = ENGRAM_CUDA_DEVICE};
	const size_t room = 64 << 20;
	char *area = __real_mmap(NULL, room, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct engram_layer_info layer;
	engram_cuda_table *t;

	assert_ptr_not_equal(area, MAP_FAILED);
	fake_cuda_reset();
	next_mapping = area;
	t = setting_attach(*state, 0, 1, &copied);
	assert_true(next_mapping < area + room);
	next_mapping = NULL;
	engram_layer_info(engram_cuda_host_table(t), 0, &layer);
	assert_int_equal(layer.num_mappings, 2);
	assert_ptr_equal((char *)layer.mapping[0].address +
				 layer.mapping[0].bytes,
			 layer.mapping[1].address);
	assert_ptr_equal(layer.rows.scales, layer.mapping[1].address);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	munmap(area, room);
}

int main(void)
{
	static struct fake_twist packed = {.in_shm = 1};
	static struct fake_twist split = {.in_shm = 1, .layout = ENGRAM_SPLIT};
	static struct fake_twist mapless = {.no_token_map = 1};
	const struct CMUnitTest tests[] = {
#define TEST(name, twist)                                            \
	cmocka_unit_test_prestate_setup_teardown(name, setting_make, \
						 setting_free, &(twist))
		TEST(not_ready, split),
		TEST(detached_while_registering, split),
		TEST(many_wait, split),
		TEST(forked_while_registering, split),
		TEST(memory_seen_elsewhere, packed),
		TEST(no_read_only_registration, split),
		TEST(on_another_device, packed),
		TEST(no_token_map, mapless),
		TEST(adjacent_mappings, split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
