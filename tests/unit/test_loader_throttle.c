/* SPDX-License-Identifier: Apache-2.0 */
/* A cap holds over any stretch of (simulated) time, whoever reads; priorities
 * are those of the calling thread; a capped load is whole. */
#include <errno.h>
#include <linux/ioprio.h>
#include <sys/syscall.h>

#include "loader_fixture.h"
#include "loader_throttle.h"

#define MIB    (UINT64_C(1) << 20)
#define RATE   (100 * MIB)
#define SECOND UINT64_C(1000000000)

static struct engram_error err;

/* What readers of `bytes` each get of a throttle in so many seconds. */
static uint64_t read_for(struct loader_throttle *t, uint64_t *now,
			 uint64_t seconds, uint64_t bytes)
{
	const uint64_t end = *now + seconds * SECOND;
	uint64_t sum = 0, wait;

	while (*now < end) {
		wait = loader_throttle_take(t, RATE, bytes, *now);
		if (!wait)
			sum += bytes;
		*now += wait;
	}
	return sum;
}

static void test_rate(void)
{
	struct loader_throttle t = LOADER_THROTTLE_INIT;
	uint64_t now = 7 * SECOND, sum;
	const uint64_t sizes[] = {4096, MIB, 64 * MIB};
	unsigned int i;

	for (i = 0; i < 3; i++) {
		sum = read_for(&t, &now, 10, sizes[i]);
		/* Beside a tenth of a second's worth and one read. */
		CHECK(sum <= 10 * RATE + RATE / 10 + sizes[i]);
		CHECK(sum >= 10 * RATE - RATE / 10 - sizes[i]);
		/* An idle hour is not made up for. */
		now += 3600 * SECOND;
	}
	/* At first the burst, then no more. */
	for (sum = 0; !loader_throttle_take(&t, RATE, MIB, now); sum += MIB)
		CHECK(sum < RATE);
	CHECK(sum >= RATE / 10 && sum <= RATE / 10 + 2 * MIB);
}

static int priority(void)
{
	return (int)syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
}

static void *set_idle(void *arg)
{
	CHECK(!loader_priority_set(LOADER_PRIORITY_IDLE));
	CHECK(IOPRIO_PRIO_CLASS(priority()) == IOPRIO_CLASS_IDLE);
	CHECK(!loader_priority_set(LOADER_PRIORITY_LOW));
	CHECK(IOPRIO_PRIO_CLASS(priority()) == IOPRIO_CLASS_BE);
	CHECK(IOPRIO_PRIO_DATA(priority()) == 7);
	CHECK(!loader_priority_set(LOADER_PRIORITY_NORMAL));
	CHECK(IOPRIO_PRIO_CLASS(priority()) == IOPRIO_CLASS_BE);
	return arg;
}

static void test_priority(void)
{
	const int before = priority();
	pthread_t id;

	CHECK(before >= 0);
	CHECK(!pthread_create(&id, NULL, set_idle, NULL));
	CHECK(!pthread_join(id, NULL));
	CHECK(priority() == before);
}

/* The bytes are right, and it took no less than they must take. */
static void test_load(enum loader_engine engine)
{
	struct loader_case c = LOADER_CASE_CHUNKS;
	const struct loader_options o = {.engine = engine,
					 .threads = 2,
					 .block_bytes = 1 << 20,
					 .queue_depth = 2,
					 .bytes_per_second = RATE,
					 .priority = LOADER_PRIORITY_IDLE};
	static struct loader_progress progress;
	struct loader_report report;
	char instance[64];
	double bytes;

	memset(&progress, 0, sizeof(progress));
	fixture_instance(instance, "throttle");
	loader_case_files(&c);
	loader_case_segment(&c, instance);
	CHECK_OK(loader_case_fill(&c, &o, &progress, &report, &err));
	loader_case_check(&c);
	bytes = (double)atomic_load(&progress.bytes_done);
	/* The last read, and a burst, wait for nothing. */
	CHECK(report.seconds_read * (double)RATE >=
	      bytes - (double)(RATE / 10 + 2 * MIB));
	CHECK(!strstr(report.engine_reason, "priority"));
	loader_case_free(&c);
}

int main(void)
{
	test_rate();
	test_priority();
	test_load(LOADER_AUTO);
	test_load(LOADER_PREADV);
	return 0;
}
