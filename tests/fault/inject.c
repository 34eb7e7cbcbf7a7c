/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "inject.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct inject_plan plan;
static atomic_int seen;	  /* calls that matched */
static atomic_bool armed; /* published after the plan */
static _Atomic(const char *) failed = "nothing";
static _Thread_local bool arming_thread;

void inject_arm(const struct inject_plan *next)
{
	plan = *next;
	arming_thread = true;
	atomic_store(&seen, 0);
	atomic_store(&failed, "nothing");
	atomic_store(&armed, true);
}

bool inject_disarm(void)
{
	arming_thread = false;
	atomic_store(&armed, false);
	return atomic_load(&seen) >= plan.nth;
}

const char *inject_call(void)
{
	return atomic_load(&failed);
}

/* Is `call` a word of plan.calls? */
static bool chosen(const char *call)
{
	const size_t len = strlen(call);
	const char *at = plan.calls;

	while (at && (at = strstr(at, call))) {
		if ((at == plan.calls || at[-1] == ' ') &&
		    (!at[len] || at[len] == ' '))
			return true;
		at += len;
	}
	return !plan.calls;
}

int inject_fault(const char *call, bool interruptible, int usual)
{
	int turn;

	if (!atomic_load(&armed) || (!plan.any_thread && !arming_thread) ||
	    (plan.interrupt && !interruptible) || !chosen(call))
		return 0;
	turn = atomic_fetch_add(&seen, 1) + 1;
	if (turn < plan.nth || (turn > plan.nth && !plan.sticky))
		return 0;
	atomic_store(&failed, call);
	if (plan.interrupt)
		return EINTR;
	return plan.number ? plan.number : usual;
}

/* WRAP(type, name, failure, errno, (parameters), (arguments)) for what can
 * not be interrupted, WRAP_EINTR for what can. */
#define WRAP_AS(interruptible, type, name, failure, usual, params, args)     \
	type __real_##name params;                                           \
	type __wrap_##name params;                                           \
	type __wrap_##name params                                            \
	{                                                                    \
		const int fault = inject_fault(#name, interruptible, usual); \
                                                                             \
		if (!fault)                                                  \
			return __real_##name args;                           \
		errno = fault;                                               \
		return failure;                                              \
	}
#define WRAP(...)	WRAP_AS(false, __VA_ARGS__)
#define WRAP_EINTR(...) WRAP_AS(true, __VA_ARGS__)

/* memory */
WRAP(void *, malloc, NULL, ENOMEM, (size_t n), (n))
WRAP(void *, calloc, NULL, ENOMEM, (size_t n, size_t m), (n, m))
WRAP(void *, realloc, NULL, ENOMEM, (void *p, size_t n), (p, n))
WRAP(void *, reallocarray, NULL, ENOMEM, (void *p, size_t n, size_t m),
     (p, n, m))
WRAP(char *, strndup, NULL, ENOMEM, (const char *s, size_t n), (s, n))
WRAP(void *, mmap, MAP_FAILED, ENOMEM,
     (void *p, size_t n, int prot, int flags, int fd, off_t at),
     (p, n, prot, flags, fd, at))
WRAP(int, mprotect, -1, ENOMEM, (void *p, size_t n, int prot), (p, n, prot))

/* What asks for huge pages may fail, and goes by another name. */
int __real_madvise(void *p, size_t n, int advice);
int __wrap_madvise(void *p, size_t n, int advice);
int __wrap_madvise(void *p, size_t n, int advice)
{
	const bool huge = advice == MADV_HUGEPAGE || advice == MADV_COLLAPSE ||
			  (advice == MADV_POPULATE_WRITE && n == 4096);
	const int fault =
		inject_fault(huge ? "madvise_huge" : "madvise", false, ENOMEM);

	if (!fault)
		return __real_madvise(p, n, advice);
	errno = fault;
	return -1;
}

/* files */
WRAP(int, memfd_create, -1, EMFILE, (const char *s, unsigned int f), (s, f))
WRAP(int, fstat, -1, EIO, (int fd, struct stat *st), (fd, st))
WRAP(int, lstat, -1, EIO, (const char *s, struct stat *st), (s, st))
WRAP(int, fstatat, -1, EIO, (int fd, const char *s, struct stat *st, int f),
     (fd, s, st, f))
WRAP(int, fstatfs, -1, EIO, (int fd, struct statfs *st), (fd, st))
WRAP(int, fchmod, -1, EPERM, (int fd, mode_t mode), (fd, mode))
WRAP(int, link, -1, EIO, (const char *a, const char *b), (a, b))
WRAP(int, rename, -1, EIO, (const char *a, const char *b), (a, b))
WRAP(int, unlink, -1, EACCES, (const char *s), (s))
WRAP(DIR *, opendir, NULL, EMFILE, (const char *s), (s))
WRAP(struct dirent *, readdir, NULL, EIO, (DIR * dir), (dir))
WRAP_EINTR(int, statfs, -1, EIO, (const char *s, struct statfs *st), (s, st))
WRAP_EINTR(int, ftruncate, -1, EIO, (int fd, off_t n), (fd, n))
WRAP_EINTR(int, fallocate, -1, ENOSPC, (int fd, int mode, off_t at, off_t n),
	   (fd, mode, at, n))
WRAP_EINTR(int, flock, -1, ENOLCK, (int fd, int how), (fd, how))
WRAP_EINTR(ssize_t, getrandom, -1, ENOSYS, (void *p, size_t n, unsigned int f),
	   (p, n, f))
WRAP_EINTR(ssize_t, pread, -1, EIO, (int fd, void *p, size_t n, off_t at),
	   (fd, p, n, at))

/* sockets */
WRAP(int, socket, -1, EMFILE, (int d, int t, int p), (d, t, p))
WRAP(int, eventfd, -1, EMFILE, (unsigned int v, int f), (v, f))
WRAP_EINTR(int, connect, -1, ECONNREFUSED,
	   (int s, const struct sockaddr *a, socklen_t n), (s, a, n))
WRAP_EINTR(ssize_t, recvmsg, -1, ECONNRESET, (int s, struct msghdr *m, int f),
	   (s, m, f))
WRAP_EINTR(ssize_t, sendmsg, -1, EPIPE, (int s, const struct msghdr *m, int f),
	   (s, m, f))
WRAP_EINTR(int, poll, -1, ENOMEM, (struct pollfd * p, nfds_t n, int t),
	   (p, n, t))

/* Says that it failed, but unmaps: what the caller then leaves behind is
 * seen, and what nobody could have helped is not. */
int __real_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n)
{
	const int fault = inject_fault("munmap", false, ENOMEM);
	const int r = __real_munmap(p, n);

	if (!fault)
		return r;
	errno = fault;
	return -1;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	const int fault = inject_fault("open", true, EMFILE);
	mode_t mode;
	va_list ap;

	if (fault) {
		errno = fault;
		return -1;
	}
	va_start(ap, flags);
	mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	return __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
	const int fault = inject_fault("fcntl", false, EINVAL);
	va_list ap;
	void *arg;

	if (fault) {
		errno = fault;
		return -1;
	}
	va_start(ap, command);
	arg = va_arg(ap, void *);
	va_end(ap);
	return __real_fcntl(fd, command, arg);
}

/* These return the errno. */
int __real_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
	const int fault = inject_fault("posix_memalign", false, ENOMEM);

	return fault ? fault : __real_posix_memalign(out, align, n);
}

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr,
			  void *(*f)(void *), void *ctx)
{
	const int fault = inject_fault("pthread_create", false, EAGAIN);

	return fault ? fault : __real_pthread_create(id, attr, f, ctx);
}
