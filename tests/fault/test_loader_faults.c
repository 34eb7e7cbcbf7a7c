/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load says and leaves when a call fails: exact status, the file and
 * the offset, and no descriptor, thread or name.
 */
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../unit/loader_fixture.h"
#include "../unit/seccomp_fixture.h"
#include "inject.h"
#include "reader.h"

static char instance[64];
static struct engram_error err;
static struct loader_case *current;
static char last_path[96];
static struct loader_progress progress;

/* Rows and dim: one chunk, and two, so that two threads work. */
#define SMALL 2000, 64
#define LARGE 65536, 1024

enum action { PASS, RESULT, SHORT, TRUNCATE, OVERWRITE, REMOVE, CANCEL };

/* The fault: at the k-th read (of one engine), from there on or once. */
static enum action action;
static _Atomic int countdown;
static int result;
/* While the drive stalls no read returns; reads that were begun. */
static _Atomic bool stalled;
static _Atomic int held;
/* Is this the call that fails? */
static bool hit(_Atomic int *counter)
{
	return atomic_load(counter) > 0 && atomic_fetch_sub(counter, 1) == 1;
}

static int plant(int res)
{
	switch (action) {
	case RESULT:
		return result;
	case SHORT:
		return res < result ? res : result;
	case TRUNCATE:
		CHECK(!truncate(current->paths[0], 5000));
		return 0;
	case OVERWRITE:
		/* The same size; the time stamp tells. */
		CHECK(!utimensat(AT_FDCWD, current->paths[0],
				 (struct timespec[2]){{1, 0}, {1, 0}}, 0));
		return res;
	case REMOVE:
		CHECK(!unlink(current->paths[0]));
		return res;
	case CANCEL:
		atomic_store(&progress.cancel, true);
		return res;
	case PASS:
		return res;
	}
	return res;
}

/* Where the fault was: what messages must say. */
static uint64_t fault_at, fault_bytes;

/* What did not "come" must be read again: it is overwritten. */
static int planted(uint8_t *buffer, uint64_t at, uint64_t bytes, int res)
{
	const int came = plant(res), keep = came > 0 ? came : 0;

	fault_at = at;
	fault_bytes = bytes;
	if (keep < res)
		memset(buffer + keep, 0xee, (size_t)(res - keep));
	return came;
}

static void hold_reads(void)
{
	if (atomic_load(&stalled))
		atomic_fetch_add(&held, 1);
	while (atomic_load(&stalled))
		usleep(1000);
}

ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at)
{
	ssize_t r;
	int res;

	hold_reads();
	r = __real_preadv(fd, iov, n, at);
	res = r < 0 ? -errno : (int)r;

	if (hit(&countdown))
		res = planted(iov->iov_base, (uint64_t)at, iov->iov_len, res);
	if (res >= 0)
		return res;
	errno = -res;
	return -1;
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring,
					    struct io_uring_cqe **cqe,
					    unsigned int n,
					    struct __kernel_timespec *ts,
					    sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring,
					    struct io_uring_cqe **cqe,
					    unsigned int n,
					    struct __kernel_timespec *ts,
					    sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring,
					    struct io_uring_cqe **cqe,
					    unsigned int n,
					    struct __kernel_timespec *ts,
					    sigset_t *mask)
{
	int r;

	if (atomic_load(&stalled)) {
		atomic_fetch_add(&held, 1);
		usleep(1000);
		return -ETIME;
	}
	r = __real_io_uring_submit_and_wait_timeout(ring, cqe, n, ts, mask);

	if (*cqe && hit(&countdown)) {
		const struct reader_request *request =
			io_uring_cqe_get_data(*cqe);

		(*cqe)->res =
			planted(request->buffer + request->done,
				request->offset + request->done,
				request->bytes - request->done, (*cqe)->res);
	}
	return r;
}

int __real_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags);
int __wrap_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags);
int __wrap_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags)
{
	const int fault = inject_fault("io_uring_queue_init", false, EPERM);

	return fault ? -fault : __real_io_uring_queue_init(n, ring, flags);
}

int __real_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n);
int __wrap_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n);
int __wrap_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n)
{
	const int fault =
		inject_fault("io_uring_register_buffers", false, ENOMEM);

	return fault ? -fault : __real_io_uring_register_buffers(ring, iov, n);
}

static int count_threads(void)
{
	return count_names("/proc/self/task", "");
}

static struct loader_report report;
static enum loader_direct direct = LOADER_DIRECT_AUTO;
static uint32_t layout = ENGRAM_PACKED;

/* One load of a fresh case with the faults that are set; bytes are compared
 * if it succeeds. */
static enum engram_status attempt(enum loader_engine engine, uint64_t rows,
				  uint64_t dim, const struct inject_plan *calls)
{
	struct loader_case c = {.rows = rows,
				.dim = dim,
				.dtype = ENGRAM_F8_E4M3,
				.scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				.layout = layout,
				.codes_at = 664,
				.scales_at = 5};
	struct loader_options o = {.engine = engine,
				   .direct = direct,
				   .threads = 2,
				   .queue_depth = 4,
				   .block_bytes = 16384};
	int fds = count_fds(), threads = count_threads();
	enum engram_status status;
	int tries;

	current = &c;
	memset(&progress, 0, sizeof(progress));
	loader_case_files(&c);
	loader_case_segment(&c, instance);
	if (calls)
		inject_arm(calls);
	status = loader_case_fill(&c, &o, &progress, &report, &err);
	if (calls)
		CHECK(inject_disarm());
	if (!status)
		loader_case_check(&c);
	else if (err.status != status || !*err.message || !*err.fix)
		fprintf(stderr, "%d %d \"%s\" \"%s\"\n", status, err.status,
			err.message, err.fix);
	if (status)
		CHECK(err.status == status && *err.message && *err.fix);
	if (status == ENGRAM_EIO || status == ENGRAM_ESOURCECHANGED)
		CHECK_STR(err.path, c.paths[0]);
	snprintf(last_path, sizeof(last_path), "%s", c.paths[0]);
	loader_case_free(&c);
	CHECK(count_fds() == fds);
	/* A joined thread may be seen for a moment more; a leaked one stays. */
	for (tries = 0; count_threads() > threads && tries < 100000; tries++)
		sched_yield();
	CHECK(count_threads() <= threads);
	CHECK(!count_names("/dev/shm", instance));
	return status;
}

static enum engram_status read_fault(enum loader_engine engine, int k,
				     enum action what, int value)
{
	enum engram_status status;

	action = what;
	result = value;
	atomic_store(&countdown, k);
	status = attempt(engine, SMALL, NULL);
	CHECK(atomic_load(&countdown) == 0);
	return status;
}

static void says(const char *fmt, ...)
{
	char what[256], want[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(want, sizeof(want), "layer 14: %s%s", last_path, what);
	CHECK_STR(err.message, want);
}

/* 664 bytes, 2000 rows of 64 codes, 5 bytes, and of 2 scales. */
#define FILE_BYTES 132669u

static void says_end(unsigned int now)
{
	says(": ends at offset %llu: it has %u bytes, and had %u when it was "
	     "opened",
	     (unsigned long long)fault_at, now, FILE_BYTES);
	CHECK(err.needed == FILE_BYTES && err.available == now);
}

static void test_reads(enum loader_engine engine)
{
	static const int lengths[] = {1,    100,  511,	512,
				      4095, 4096, 4097, 12289};
	static const int ks[] = {1, 2, 5};
	unsigned int i, n;

	for (i = 0; i < 3; i++) {
		const int k = ks[i];

		CHECK_OK(read_fault(engine, k, RESULT, -EINTR));
		CHECK_OK(read_fault(engine, k, RESULT, -EAGAIN));
		for (n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++)
			CHECK_OK(read_fault(engine, k, SHORT, lengths[n]));
		CHECK_OK(read_fault(engine, k, RESULT, -EINVAL));
		CHECK(!report.direct);
		CHECK(read_fault(engine, k, RESULT, -EIO) == ENGRAM_EIO);
		CHECK(err.sys_errno == EIO);
		says(": read of %llu bytes at %llu: Input/output error",
		     (unsigned long long)fault_bytes,
		     (unsigned long long)fault_at);
		CHECK(read_fault(engine, k, RESULT, 0) ==
		      ENGRAM_ESOURCECHANGED);
		says_end(FILE_BYTES);
		CHECK(read_fault(engine, k, TRUNCATE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		says_end(5000);
		CHECK(read_fault(engine, k, OVERWRITE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(read_fault(engine, k, REMOVE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(read_fault(engine, k, CANCEL, 0) == ENGRAM_ECANCELED);
	}
	action = PASS;
}

/* Direct reads as the user demands: no way around a refusal. */
static void test_direct(enum loader_engine engine)
{
	enum engram_status status;

	direct = LOADER_DIRECT_ON;
	status = attempt(engine, SMALL, NULL);
	if (status == ENGRAM_OK) {
		CHECK(report.direct);
		CHECK(read_fault(engine, 1, RESULT, -EINVAL) ==
		      ENGRAM_EUNSUPPORTED);
		action = PASS;
	} else {
		CHECK(status == ENGRAM_EUNSUPPORTED);
		printf("direct reads not tested: /var/tmp has none\n");
	}
	direct = LOADER_DIRECT_AUTO;
	CHECK_OK(attempt(engine, SMALL, NULL));
	CHECK(report.direct == (status == ENGRAM_OK));
	/* A file system that refuses the flag. */
	direct = LOADER_DIRECT_ON;
	CHECK(attempt(engine, SMALL,
		      &(struct inject_plan){
			      .nth = 1, .calls = "open", .number = EINVAL}) ==
	      ENGRAM_EUNSUPPORTED);
	says(": its file system has no direct reads");
	CHECK_STR(err.fix, "set loader.direct to \"auto\" or \"off\"");
	direct = LOADER_DIRECT_AUTO;
	CHECK_OK(attempt(engine, SMALL,
			 &(struct inject_plan){
				 .nth = 1, .calls = "open", .number = EINVAL}));
	CHECK(!report.direct);
}

static void test_refused(void)
{
	static const int errnos[] = {EPERM, ENOSYS, ENOMEM};
	unsigned int i;

	for (i = 0; i < 3; i++) {
		const struct inject_plan refuse = {
			.nth = 1,
			.calls = "io_uring_queue_init",
			.number = errnos[i],
			.any_thread = true,
			.sticky = true};
		char want[128];

		CHECK_OK(attempt(LOADER_AUTO, SMALL, &refuse));
		CHECK(report.engine == LOADER_PREADV);
		snprintf(want, sizeof(want), "io_uring: %s",
			 strerror(errnos[i]));
		CHECK(!strncmp(report.engine_reason, want, strlen(want)));
		CHECK(attempt(LOADER_IO_URING, SMALL, &refuse) ==
		      (errnos[i] == ENOMEM ? ENGRAM_ENOMEM
					   : ENGRAM_EUNSUPPORTED));
	}
}

static enum engram_status call_fault(enum loader_engine engine,
				     const char *name, int nth)
{
	return attempt(engine, LARGE,
		       &(struct inject_plan){
			       .nth = nth, .calls = name, .any_thread = true});
}

static void test_calls(enum loader_engine engine)
{
	int k;

	CHECK(call_fault(engine, "pthread_create", 1) == ENGRAM_ESYS);
	CHECK(err.sys_errno == EAGAIN);
	CHECK_OK(call_fault(engine, "pthread_create", 2));
	CHECK(report.threads == 1);
	for (k = 1; k <= 2; k++)
		CHECK(call_fault(engine, "fallocate", k) == ENGRAM_ENOSPACE);
	for (k = 1; k <= 4; k++)
		CHECK(attempt(engine, SMALL,
			      &(struct inject_plan){
				      .nth = k,
				      .any_thread = true,
				      .calls = "malloc calloc "
					       "posix_memalign"}) ==
		      ENGRAM_ENOMEM);
	CHECK(call_fault(engine, "open", 1) == ENGRAM_ESYS);
	CHECK(call_fault(engine, "fstat", 1) == ENGRAM_ESYS);
}

static void *cancel_once_held(void *ctx)
{
	while (atomic_load(&held) < 2)
		usleep(1000);
	atomic_store(&progress.cancel, true);
	return ctx;
}

/* A drive that does not answer holds nobody up: a load is cancelled while it
 * stalls, and what waits for it is gone once it answers. */
static void test_stall(enum loader_engine engine)
{
	struct loader_case c = {.rows = 65536,
				.dim = 1024,
				.dtype = ENGRAM_F8_E4M3,
				.scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				.layout = ENGRAM_PACKED,
				.codes_at = 664};
	struct loader_options o = {.engine = engine,
				   .direct = direct,
				   .threads = 2,
				   .queue_depth = 4,
				   .block_bytes = 16384};
	const int fds = count_fds(), threads = count_threads();
	pthread_t id;

	memset(&progress, 0, sizeof(progress));
	loader_case_files(&c);
	loader_case_segment(&c, instance);
	atomic_store(&held, 0);
	atomic_store(&stalled, true);
	CHECK(!pthread_create(&id, NULL, cancel_once_held, NULL));
	CHECK(loader_case_fill(&c, &o, &progress, &report, &err) ==
	      ENGRAM_ECANCELED);
	CHECK(!pthread_join(id, NULL));
	loader_case_free(&c);
	CHECK(!count_names("/dev/shm", instance));
	CHECK(count_threads() > threads);
	atomic_store(&stalled, false);
	while (count_threads() > threads || count_fds() > fds)
		usleep(1000);
}

static void *nothing(void *ctx)
{
	return ctx;
}

/* With the first thread of a process TSan starts one of its own. */
static void first_thread(void)
{
	pthread_t id;

	CHECK(!pthread_create(&id, NULL, nothing, NULL));
	CHECK(!pthread_join(id, NULL));
}

/* Docker's profile: io_uring_setup is EPERM. */
static void test_seccomp(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		first_thread();
		deny_call(__NR_io_uring_setup);
		CHECK_OK(attempt(LOADER_AUTO, SMALL, NULL));
		CHECK(report.engine == LOADER_PREADV);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

static void test_engine(enum loader_engine engine)
{
	layout = ENGRAM_SPLIT;
	test_reads(engine);
	layout = ENGRAM_PACKED;
	test_reads(engine);
	test_direct(engine);
	test_calls(engine);
	test_stall(engine);
}

int main(void)
{
	fixture_instance(instance, "loader-faults");
	test_seccomp();
	first_thread();
	test_refused();
	test_engine(LOADER_PREADV);
	if (attempt(LOADER_AUTO, SMALL, NULL) ||
	    report.engine != LOADER_IO_URING) {
		printf("io_uring not tested: %s\n", report.engine_reason);
		return 0;
	}
	CHECK_OK(attempt(
		LOADER_IO_URING, SMALL,
		&(struct inject_plan){.nth = 1,
				      .calls = "io_uring_register_buffers",
				      .any_thread = true,
				      .sticky = true}));
	CHECK(!report.registered_buffers);
	CHECK_STR(report.engine_reason, "buffers not registered");
	test_engine(LOADER_IO_URING);
	return 0;
}
