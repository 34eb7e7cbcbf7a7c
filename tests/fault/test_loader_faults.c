/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load says and leaves when a call fails: exact status, the file and
 * the offset, and no descriptor, thread or name.
 */
#include <errno.h>
#include <liburing.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../unit/loader_fixture.h"

static char instance[64];
static struct engram_error err;
static struct loader_case *current;
static struct loader_progress progress;

enum action { PASS, RESULT, SHORT, TRUNCATE, OVERWRITE, REMOVE, CANCEL };

/* The fault: at the k-th read (of one engine), from there on or once. */
static enum action action;
static _Atomic int countdown;
static int result;
static _Atomic int fail_queue_init, fail_register, fail_thread, fail_fallocate,
	fail_alloc;

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

ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at)
{
	ssize_t r = __real_preadv(fd, iov, n, at);
	int res = r < 0 ? -errno : (int)r;

	if (hit(&countdown)) {
		res = plant(res);
		/* What did not "come" must be read again. */
		if (res < r)
			memset((char *)iov->iov_base + (res > 0 ? res : 0),
			       0xee, (size_t)(r - (res > 0 ? res : 0)));
	}
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
	int r = __real_io_uring_submit_and_wait_timeout(ring, cqe, n, ts, mask);

	if (*cqe && hit(&countdown))
		(*cqe)->res = plant((*cqe)->res);
	return r;
}

int __real_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags);
int __wrap_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags);
int __wrap_io_uring_queue_init(unsigned int n, struct io_uring *ring,
			       unsigned int flags)
{
	return fail_queue_init ? -fail_queue_init
			       : __real_io_uring_queue_init(n, ring, flags);
}

int __real_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n);
int __wrap_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n);
int __wrap_io_uring_register_buffers(struct io_uring *ring,
				     const struct iovec *iov, unsigned int n)
{
	return fail_register ? -ENOMEM
			     : __real_io_uring_register_buffers(ring, iov, n);
}

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx)
{
	return hit(&fail_thread) ? EAGAIN
				 : __real_pthread_create(id, attr, f, ctx);
}

int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
	if (!hit(&fail_fallocate))
		return __real_fallocate(fd, mode, at, bytes);
	errno = ENOSPC;
	return -1;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
	return hit(&fail_alloc) ? NULL : __real_malloc(bytes);
}
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
	return hit(&fail_alloc) ? NULL : __real_calloc(n, bytes);
}
int __real_posix_memalign(void **out, size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes)
{
	return hit(&fail_alloc) ? ENOMEM
				: __real_posix_memalign(out, align, bytes);
}

static int count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = 0;

	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static struct loader_report report;

/* One load of a fresh case with the faults that are set; bytes are compared
 * if it succeeds. */
static enum engram_status attempt(enum loader_engine engine, uint64_t rows,
				  uint64_t dim)
{
	struct loader_case c = {.rows = rows,
				.dim = dim,
				.dtype = ENGRAM_F8_E4M3,
				.scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				.layout = ENGRAM_PACKED,
				.codes_at = 664,
				.scales_at = 5};
	struct loader_options o = {engine, LOADER_DIRECT_AUTO, 2, 4, 16384};
	int fds = count_fds(), threads = count_threads();
	int fallocates = atomic_exchange(&fail_fallocate, 0);
	int allocs = atomic_exchange(&fail_alloc, 0);
	enum engram_status status;
	int tries;

	current = &c;
	memset(&progress, 0, sizeof(progress));
	loader_case_files(&c);
	loader_case_segment(&c, instance);
	atomic_store(&fail_fallocate, fallocates);
	atomic_store(&fail_alloc, allocs);
	status = loader_fill(&c.checkpoint, &c.layer, c.writer, &o, &progress,
			     &report, &err);
	atomic_store(&fail_fallocate, 0);
	atomic_store(&fail_alloc, 0);
	if (!status)
		loader_case_check(&c);
	else if (err.status != status || !*err.message || !*err.fix)
		fprintf(stderr, "%d %d \"%s\" \"%s\"\n", status, err.status,
			err.message, err.fix);
	if (status)
		CHECK(err.status == status && *err.message && *err.fix);
	if (status == ENGRAM_EIO || status == ENGRAM_ESOURCECHANGED)
		CHECK_STR(err.path, c.paths[0]);
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
	status = attempt(engine, 2000, 64);
	CHECK(atomic_load(&countdown) == 0);
	return status;
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
		CHECK(strstr(err.message, ": read of "));
		CHECK(strstr(err.message, ": Input/output error"));
		CHECK(read_fault(engine, k, RESULT, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(read_fault(engine, k, TRUNCATE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(strstr(err.message, "it has 5000 bytes, and had "));
		CHECK(err.available == 5000);
		CHECK(read_fault(engine, k, OVERWRITE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(read_fault(engine, k, REMOVE, 0) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK(read_fault(engine, k, CANCEL, 0) == ENGRAM_ECANCELED);
	}
	action = PASS;
}

static void test_refused(void)
{
	static const int errnos[] = {EPERM, ENOSYS, ENOMEM};
	unsigned int i;

	for (i = 0; i < 3; i++) {
		char want[128];

		atomic_store(&fail_queue_init, errnos[i]);
		CHECK_OK(attempt(LOADER_AUTO, 2000, 64));
		CHECK(report.engine == LOADER_PREADV);
		snprintf(want, sizeof(want), "io_uring: %s",
			 strerror(errnos[i]));
		CHECK(!strncmp(report.engine_reason, want, strlen(want)));
		CHECK(attempt(LOADER_IO_URING, 2000, 64) ==
		      (errnos[i] == ENOMEM ? ENGRAM_ENOMEM
					   : ENGRAM_EUNSUPPORTED));
	}
	atomic_store(&fail_queue_init, 0);
}

static void test_calls(enum loader_engine engine)
{
	int k;

	/* Two chunks, so two threads. */
	atomic_store(&fail_thread, 1);
	CHECK(attempt(engine, 65536, 1024) == ENGRAM_ESYS);
	CHECK(err.sys_errno == EAGAIN);
	atomic_store(&fail_thread, 2);
	CHECK_OK(attempt(engine, 65536, 1024));
	CHECK(report.threads == 1);
	for (k = 1; k <= 4; k += 3) {
		atomic_store(&fail_fallocate, k);
		CHECK(attempt(engine, 65536, 1024) == ENGRAM_ENOSPACE);
	}
	for (k = 1; k <= 4; k++) {
		atomic_store(&fail_alloc, k);
		CHECK(attempt(engine, 2000, 64) == ENGRAM_ENOMEM);
	}
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
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {4, code};
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		first_thread();
		CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
		CHECK_OK(attempt(LOADER_AUTO, 2000, 64));
		CHECK(report.engine == LOADER_PREADV);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(void)
{
	fixture_instance(instance, "loader-faults");
	test_seccomp();
	first_thread();
	test_refused();
	test_reads(LOADER_PREADV);
	test_calls(LOADER_PREADV);
	if (attempt(LOADER_AUTO, 2000, 64) ||
	    report.engine != LOADER_IO_URING) {
		printf("io_uring not tested: %s\n", report.engine_reason);
		return 0;
	}
	atomic_store(&fail_register, 1);
	CHECK_OK(attempt(LOADER_IO_URING, 2000, 64));
	CHECK(!report.registered_buffers);
	CHECK_STR(report.engine_reason, "buffers not registered");
	atomic_store(&fail_register, 0);
	test_reads(LOADER_IO_URING);
	test_calls(LOADER_IO_URING);
	return 0;
}
