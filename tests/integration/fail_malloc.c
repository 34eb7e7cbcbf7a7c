/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a sidecar: the N-th allocation from now fails.  N is the
 * int64 in the file $FAIL_MALLOC_FILE, which the test maps too; it counts
 * down to 0 and stays there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static _Atomic int64_t *countdown;

__attribute__((constructor)) static void map_countdown(void)
{
	const char *file = getenv("FAIL_MALLOC_FILE");
	int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	void *page;

	if (fd < 0)
		_exit(99);
	page = mmap(NULL, sizeof(*countdown), PROT_READ | PROT_WRITE,
		    MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		_exit(99);
	countdown = page;
}

static int fails(void)
{
	int64_t left = countdown ? atomic_load(countdown) : 0;

	while (left > 0)
		if (atomic_compare_exchange_weak(countdown, &left, left - 1))
			break;
	if (left != 1)
		return 0;
	errno = ENOMEM;
	return 1;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size)
{
	return fails() ? NULL : __libc_realloc(old, size);
}
