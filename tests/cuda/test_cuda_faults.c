/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every CUDA call of an attach fails in turn, then every allocation: it is
 * reported, nothing is left behind, and the next attach succeeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../fault/inject.h"
#include "fake_cuda.h"
#include "setting.h"

/* Split, so that there is more than one range of a layer. */
static struct fake_twist split = {.in_shm = 1, .layout = ENGRAM_SPLIT};
static const struct engram_attach_params demo = {.table = "demo"};

enum { REGISTERED, WRITABLE, DEVICE };
static const struct engram_cuda_attach_params kinds[] = {
	{.device = -1, .chunk_bytes = 4096},
	{.device = -1, .chunk_bytes = 4096, .force_writable = 1},
	{.device = -1, .chunk_bytes = 4096, .placement = ENGRAM_CUDA_DEVICE},
};

/* Leases that the sidecar knows of, once it has heard all that was said. */
static int leases(struct setting *s)
{
	char *answer;
	int count;

	assert_int_equal(engram_call(s->client, "ping", NULL, &answer),
			 ENGRAM_OK);
	engram_free(answer);
	pthread_mutex_lock(&s->fake.lock);
	count = s->fake.leases;
	pthread_mutex_unlock(&s->fake.lock);
	return count;
}

static enum cudaStreamCaptureMode capture_mode(void)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal, found;

	cudaThreadExchangeStreamCaptureMode(&mode);
	found = mode;
	cudaThreadExchangeStreamCaptureMode(&mode);
	return found;
}

/* Of this device and of the sidecar; what the process holds else is for the
 * leak checker. */
static void check_nothing_left(struct setting *s)
{
	if (fake_cuda.num_ranges || fake_cuda.allocations ||
	    fake_cuda.streams || fake_cuda.pending_errors)
		fail_msg("failed: %s; %d ranges, %d allocations, %d streams, "
			 "%d errors are left",
			 fake_cuda.failed ? fake_cuda.failed : "nothing",
			 fake_cuda.num_ranges, fake_cuda.allocations,
			 fake_cuda.streams, fake_cuda.pending_errors);
	assert_int_equal(leases(s), 0);
}

/* The failure of an attach or of a wait that names the call. */
static void check_error(enum engram_status status)
{
	const struct engram_error *err = engram_last_error();

	assert_int_equal(status, ENGRAM_ECUDA);
	if (!strstr(err->message, fake_cuda.failed) || !*err->fix)
		fail_msg("%s failed: \"%s\", fix \"%s\"", fake_cuda.failed,
			 err->message, err->fix);
}

/* Calls that only end something: they fail when all is lost, and then there
 * is nothing to do about it. */
static bool harmless(const char *call)
{
	return !strcmp(call, "cudaStreamDestroy") ||
	       !strcmp(call, "cudaThreadExchangeStreamCaptureMode");
}

/* false: there was no call of that number. */
static bool attach_failing(struct setting *s, int kind, int at,
			   cudaError_t error)
{
	enum engram_status status;
	engram_cuda_table *t;

	fake_cuda_reset();
	fake_cuda.fail_at = at;
	fake_cuda.error = error;
	status = engram_cuda_attach(s->client, &demo, &kinds[kind], &t);
	if (status) {
		check_error(status);
		assert_null(t);
		assert_int_equal(capture_mode(), cudaStreamCaptureModeGlobal);
		check_nothing_left(s);
		return true;
	}
	status = engram_cuda_wait(t, -1);
	if (status) {
		/* rolled back before the handle is given up */
		check_error(status);
		assert_int_equal(fake_cuda.num_ranges, 0);
		assert_int_equal(fake_cuda.streams, 0);
		assert_int_equal(fake_cuda.pending_errors, 0);
	} else if (fake_cuda.failed && !harmless(fake_cuda.failed)) {
		fail_msg("%s failed, and nobody noticed", fake_cuda.failed);
	}
	fake_cuda.fail_at = 0;
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_nothing_left(s);
	return fake_cuda.failed;
}

static void attach_well(struct setting *s, int kind)
{
	engram_cuda_table *t;

	fake_cuda_reset();
	t = setting_attach(s, 0, 1, &kinds[kind]);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_nothing_left(s);
}

static void each_call_of(struct setting *s, int kind, int at_least)
{
	static const cudaError_t errors[] = {
		cudaErrorMemoryAllocation, cudaErrorOperatingSystem,
		cudaErrorNotSupported, cudaErrorUnknown};

	for (int i = 0; i < 4; i++) {
		int at = 1;

		while (attach_failing(s, kind, at, errors[i])) {
			attach_well(s, kind);
			at++;
		}
		assert_true(at > at_least);
	}
}

static void each_call_fails(void **state)
{
	each_call_of(*state, REGISTERED, 25);
}

static void each_call_of_writable_fails(void **state)
{
	each_call_of(*state, WRITABLE, 25);
}

static void each_call_of_device_fails(void **state)
{
	each_call_of(*state, DEVICE, 40);
}

/* Without a device the host's part is let go of all the same. */
static void each_call_of_detach_fails(void **state)
{
	struct setting *s = *state;

	for (int kind = REGISTERED; kind <= DEVICE; kind++) {
		int before, at = 1;

		do {
			engram_cuda_table *t;
			enum engram_status status;

			fake_cuda_reset();
			t = setting_attach(s, 0, 1, &kinds[kind]);
			before = fake_cuda.calls;
			fake_cuda.error = cudaErrorUnknown;
			fake_cuda.fail_at = before + at++;
			status = engram_cuda_detach(t);
			if (status)
				check_error(status);
			fake_cuda.fail_at = 0;
			check_nothing_left(s);
		} while (fake_cuda.failed);
		assert_true(at > 5);
	}
}

/* What the registration took is taken back from the last. */
static void the_last_range_fails(void **state)
{
	struct setting *s = *state;
	engram_cuda_table *t;
	int ranges;

	fake_cuda_reset();
	t = setting_attach(s, 0, 1, &kinds[REGISTERED]);
	ranges = fake_cuda.num_ranges;
	assert_true(ranges > 4);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	fake_cuda_reset();
	fake_cuda.refuse_range = ranges;
	assert_int_equal(
		engram_cuda_attach(s->client, &demo, &kinds[REGISTERED], &t),
		ENGRAM_OK);
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_ECUDA);
	assert_non_null(strstr(engram_last_error()->message, "registering"));
	assert_non_null(strstr(engram_last_error()->fix, "ulimit -l"));
	assert_int_equal(fake_cuda.registered_ever, ranges - 1);
	assert_int_equal(fake_cuda.num_ranges, 0);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_nothing_left(s);
}

/* While another stream of the process is being captured. */
static void report_24_in_relaxed_mode(void **state)
{
	struct engram_cuda_counters counters;
	struct setting *s = *state;

	for (int kind = REGISTERED; kind <= DEVICE; kind++) {
		engram_cuda_table *t;

		fake_cuda_reset();
		t = setting_attach(s, 0, 1, &kinds[kind]);
		assert_int_equal(capture_mode(), cudaStreamCaptureModeGlobal);
		assert_int_equal(engram_cuda_counters(t, NULL, &counters),
				 ENGRAM_OK);
		assert_int_equal(capture_mode(), cudaStreamCaptureModeGlobal);
		assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
		assert_int_equal(capture_mode(), cudaStreamCaptureModeGlobal);
		assert_int_equal(fake_cuda.strict_calls, 0);
	}
}

/* A registration fails, and the next one is good: no error of the first is
 * left for whoever calls CUDA then. */
static void report_27_good_after_a_failed_one(void **state)
{
	struct setting *s = *state;
	engram_cuda_table *t;

	fake_cuda_reset();
	fake_cuda.refuse_range = 2;
	assert_int_equal(
		engram_cuda_attach(s->client, &demo, &kinds[REGISTERED], &t),
		ENGRAM_OK);
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_ECUDA);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	assert_int_equal(fake_cuda.pending_errors, 0);
	assert_int_equal(cudaGetLastError(), cudaSuccess);
	fake_cuda.refuse_range = 0;
	t = setting_attach(s, 0, 1, &kinds[REGISTERED]);
	assert_int_equal(fake_cuda.pending_errors, 0);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	check_nothing_left(s);
}

/* ---- allocations and system calls ---- */

/* One life with a plan; false when nothing failed. */
static bool one_fault(const struct inject_plan *plan, int kind)
{
	struct setting *s;
	void *state = &split;
	enum engram_status status;
	engram_cuda_table *t;
	bool failed;

	fake_cuda_reset();
	setting_make(&state);
	s = state;
	inject_arm(plan);
	status = engram_cuda_attach(s->client, &demo, &kinds[kind], &t);
	if (!status)
		status = engram_cuda_wait(t, -1);
	failed = inject_disarm();
	if (status && (!failed || !engram_last_error()->message[0]))
		fail_msg("%s, call %d: \"%s\"", inject_call(), plan->nth,
			 engram_last_error()->message);
	if (!failed)
		assert_int_equal(status, ENGRAM_OK);
	if (t)
		assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	assert_int_equal(fake_cuda.num_ranges, 0);
	assert_int_equal(fake_cuda.allocations, 0);
	assert_int_equal(fake_cuda.streams, 0);
	assert_int_equal(fake_cuda.pending_errors, 0);
	setting_free(&state);
	return failed;
}

static void each_allocation_fails(void **state)
{
	(void)state;
	for (int kind = REGISTERED; kind <= DEVICE; kind++) {
		struct inject_plan plan = {
			.nth = 1,
			.calls = "malloc calloc realloc reallocarray strndup "
				 "pthread_create",
		};

		while (one_fault(&plan, kind))
			plan.nth++;
		print_message("%d calls failed in turn\n", plan.nth - 1);
		assert_true(plan.nth > 7);
	}
}

/* In the background thread. */
static void protecting_fails(void **state)
{
	struct inject_plan plan = {
		.nth = 1, .calls = "mprotect", .any_thread = true};

	(void)state;
	while (one_fault(&plan, WRITABLE))
		plan.nth++;
	/* the copy of the header, codes and scales */
	assert_int_equal(plan.nth - 1, 3 * FAKE_LAYERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name)                                                   \
	cmocka_unit_test_prestate_setup_teardown(name, setting_make, \
						 setting_free, &split)
		TEST(each_call_fails),
		TEST(each_call_of_writable_fails),
		TEST(each_call_of_device_fails),
		TEST(each_call_of_detach_fails),
		TEST(the_last_range_fails),
		TEST(report_24_in_relaxed_mode),
		TEST(report_27_good_after_a_failed_one),
		cmocka_unit_test(each_allocation_fails),
		cmocka_unit_test(protecting_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
