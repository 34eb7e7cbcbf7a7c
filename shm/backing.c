/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are memory: /dev/shm, hugetlbfs and memfd. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "backing.h"

void backing_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		close(fd);
	errno = saved;
}

enum engram_status backing_path(char out[SEGMENT_PATH_MAX],
				const struct engram_backing *backing,
				const char *name, struct engram_error *err)
{
	if (backing->kind == ENGRAM_BACKING_MEMFD) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "\"%s\": a memfd has no name", name);
		engram_error_fix(err, "ask the sidecar for a descriptor, or "
				      "use the shm backing");
		return ENGRAM_EUNSUPPORTED;
	}
	if (segment_path(out, backing, name))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL, "\"%s\": the path is too long",
			 name);
	engram_error_fix(err, "use a shorter backing directory");
	return ENGRAM_EINVAL;
}

int backing_open_retry(const char *path, int flags, unsigned int mode)
{
	int fd;

	do
		fd = open(path, flags, mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}

/* MFD_HUGETLB and the logarithm of the page's size, where it has its place. */
static unsigned int hugetlb_flags(uint64_t page_bytes)
{
	if (!page_bytes)
		return 0;
	return MFD_HUGETLB | (unsigned int)__builtin_ctzll(page_bytes)
				     << MAP_HUGE_SHIFT;
}

static enum engram_status create_memfd(const struct engram_backing *backing,
				       const char *name, int *fd,
				       struct engram_error *err)
{
	enum engram_status status;

	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING |
					 hugetlb_flags(backing->memfd_page));
	if (*fd >= 0)
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "memfd_create \"%s\"", name);
	engram_error_fix(err,
			 backing->memfd_page
				 ? "set memory.huge_page to a size that is "
				   "in /sys/kernel/mm/hugepages, or leave "
				   "it out"
				 : "free some memory or raise "
				   "RLIMIT_NOFILE");
	return status;
}

enum engram_status backing_create(const struct engram_backing *backing,
				  const char *name, int *fd,
				  struct engram_error *err)
{
	char path[SEGMENT_PATH_MAX];
	enum engram_status status;

	if (backing->kind == ENGRAM_BACKING_MEMFD)
		return create_memfd(backing, name, fd, err);
	status = backing_path(path, backing, name, err);
	if (status)
		return status;
	*fd = backing_open_retry(
		path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
	if (*fd < 0 && errno == EEXIST) {
		engram_error_set(err, ENGRAM_EEXIST, "%s exists already", path);
		engram_error_fix(err, "if no engramd of that instance runs, "
				      "remove what it left with "
				      "`engramctl prune`");
		engram_error_path(err, "%s", path);
		return ENGRAM_EEXIST;
	}
	if (*fd < 0) {
		status = engram_error_sys(err, errno, "create %s", path);
		engram_error_fix(err,
				 "check that %s is mounted and that "
				 "engramd may write there",
				 backing->dir);
		engram_error_path(err, "%s", path);
		return status;
	}
	/* The umask had its say; the mode is part of the contract. */
	if (fchmod(*fd, 0640)) {
		status = engram_error_sys(err, errno, "fchmod %s", path);
		engram_error_fix(err,
				 "check what file system is mounted on "
				 "%s",
				 backing->dir);
		unlink(path);
		backing_close(*fd);
		*fd = -1;
		return status;
	}
	return ENGRAM_OK;
}

/* A counter of the huge pages of that size; 0 if it can not be read. */
static uint64_t pool_counter(uint64_t page_bytes, const char *name)
{
	char path[128], text[32] = "";
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
		 page_bytes >> 10, name);
	fd = backing_open_retry(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	n = pread(fd, text, sizeof(text) - 1, 0);
	close(fd);
	return n > 0 ? strtoull(text, NULL, 10) : 0;
}

/* What the pool still has for us, in bytes: free pages that nobody has
 * reserved, and those that may be made on demand. */
static uint64_t pool_room(uint64_t page_bytes)
{
	const uint64_t reserved = pool_counter(page_bytes, "resv_hugepages");
	const uint64_t surplus = pool_counter(page_bytes, "surplus_hugepages");
	const uint64_t has = pool_counter(page_bytes, "free_hugepages");
	const uint64_t may =
		pool_counter(page_bytes, "nr_overcommit_hugepages");

	return ((has > reserved ? has - reserved : 0) +
		(may > surplus ? may - surplus : 0)) *
	       page_bytes;
}

static int statfs_retry(const struct engram_backing *backing, struct statfs *fs)
{
	int r;

	do
		r = statfs(backing->dir, fs);
	while (r && errno == EINTR);
	return r;
}

enum engram_status engram_backing_room(const struct engram_backing *backing,
				       uint64_t *bytes,
				       struct engram_error *err)
{
	enum engram_status status;
	struct statfs fs;

	if (backing->kind == ENGRAM_BACKING_MEMFD && backing->memfd_page) {
		*bytes = pool_room(backing->memfd_page);
		return ENGRAM_OK;
	}
	if (backing->kind == ENGRAM_BACKING_MEMFD) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "a memfd has no limit of its own");
		engram_error_fix(err, "compare with MemAvailable and the "
				      "cgroup's memory.max");
		return ENGRAM_EUNSUPPORTED;
	}
	if (statfs_retry(backing, &fs)) {
		status =
			engram_error_sys(err, errno, "statfs %s", backing->dir);
		engram_error_fix(err,
				 "mount a tmpfs or hugetlbfs on %s, or "
				 "use the memfd backing",
				 backing->dir);
		engram_error_path(err, "%s", backing->dir);
		return status;
	}
	if (backing->kind == ENGRAM_BACKING_SHM && fs.f_type != TMPFS_MAGIC &&
	    fs.f_type != RAMFS_MAGIC) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "%s is not in memory: it is no tmpfs",
				 backing->dir);
		engram_error_fix(err, "mount a tmpfs there, or set "
				      "memory.path to one");
		engram_error_path(err, "%s", backing->dir);
		return ENGRAM_EUNSUPPORTED;
	}
	*bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	/* Without a limit of its own (size=) a mount says 0 blocks. */
	if (!fs.f_blocks)
		*bytes = UINT64_MAX;
	if (fs.f_type == HUGETLBFS_MAGIC) {
		const uint64_t pool = pool_room((uint64_t)fs.f_bsize);

		if (pool < *bytes)
			*bytes = pool;
	}
	return ENGRAM_OK;
}

uint64_t engram_backing_files(const struct engram_backing *backing)
{
	struct statfs fs;

	/* A mount without a limit (nr_inodes=0) says 0 files. */
	if (backing->kind == ENGRAM_BACKING_MEMFD ||
	    statfs_retry(backing, &fs) || !fs.f_files)
		return UINT64_MAX;
	return (uint64_t)fs.f_ffree;
}

uint64_t engram_backing_page(const struct engram_backing *backing)
{
	struct statfs fs;

	if (backing->kind == ENGRAM_BACKING_MEMFD && backing->memfd_page)
		return backing->memfd_page;
	if (backing->kind == ENGRAM_BACKING_MEMFD ||
	    statfs_retry(backing, &fs) || fs.f_type != HUGETLBFS_MAGIC)
		return (uint64_t)sysconf(_SC_PAGESIZE);
	return (uint64_t)fs.f_bsize;
}

static int same_file(int a, int b)
{
	struct stat sa, sb;

	return !fstat(a, &sa) && !fstat(b, &sb) && sa.st_dev == sb.st_dev &&
	       sa.st_ino == sb.st_ino;
}

enum engram_status backing_reopen(int fd, const char *path, int access,
				  int *out, struct engram_error *err)
{
	enum engram_status status;
	char proc[64];

	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	*out = backing_open_retry(proc, access | O_CLOEXEC, 0);
	if (*out >= 0)
		return ENGRAM_OK;
	if (errno == ENOENT && path) {
		*out = backing_open_retry(path, access | O_CLOEXEC | O_NOFOLLOW,
					  0);
		if (*out >= 0 && same_file(fd, *out))
			return ENGRAM_OK;
		backing_close(*out);
		*out = -1;
		errno = ENOENT;
	}
	status = engram_error_sys(err, errno, "reopen %s by %s",
				  access == O_RDWR ? "read-write" : "read-only",
				  proc);
	engram_error_fix(err, "mount /proc, and raise RLIMIT_NOFILE if "
			      "descriptors ran out");
	return status;
}
