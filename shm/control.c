/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of the control page.  The lock is on the page's own
 * inode: a page that is taken over stays the same memory, so clients of the
 * dead sidecar see the new epoch in what they have mapped.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backing.h"
#include "failpoint.h"
#include "keeper.h"
#include "lock.h"
#include "engram_control.h"

#define AT(type, field, offset) \
	static_assert(offsetof(struct type, field) == offset, #field)
AT(engram_control_page, magic, 0);
AT(engram_control_page, abi_version, 8);
AT(engram_control_page, page_bytes, 12);
AT(engram_control_page, instance, 16);
AT(engram_control_page, boot_epoch, 80);
AT(engram_control_page, pid, 88);
AT(engram_control_page, num_tables, 92);
AT(engram_control_page, start_ns, 96);
AT(engram_control_page, heartbeat_ns, 104);
AT(engram_control_page, connections, 112);
AT(engram_control_page, requests, 120);
AT(engram_control_page, reserved, 128);
AT(engram_control_page, tables, 248);
AT(engram_control_table, name, 0);
AT(engram_control_table, generation, 64);
AT(engram_control_table, state, 72);
AT(engram_control_table, leases, 76);
AT(engram_control_table, bytes_total, 80);
AT(engram_control_table, bytes_done, 88);
AT(engram_control_table, content_id, 96);
AT(engram_control_table, loads, 112);
AT(engram_control_table, load_failures, 120);
AT(engram_control_table, sequence, 128);
AT(engram_control_table, bytes_verified, 136);
AT(engram_control_table, load_rate, 144);
AT(engram_control_table, reserved, 152);
static_assert(sizeof(struct engram_control_table) == 256, "table size");
static_assert(sizeof(struct engram_control_page) ==
		      248 + 256 * ENGRAM_CONTROL_TABLES,
	      "page size");
#undef AT

struct engram_control_owner {
	int fd;
	int named;
	char path[SEGMENT_PATH_MAX];
	struct engram_keeper *keeper; /* of a memfd */
	char name[256];		      /* by which it is kept */
	struct engram_control_page *page;
	uint64_t map_bytes;
};

const char *engram_table_state_name(enum engram_table_state state)
{
	static const char *const names[] = {"absent", "loading",  "verifying",
					    "ready",  "draining", "failed"};

	return (unsigned int)state < sizeof(names) / sizeof(names[0])
		       ? names[state]
		       : "unknown";
}

/* Whose pid the page that lies there names; 0: none. */
static int32_t page_pid(int fd)
{
	const size_t at = offsetof(struct engram_control_page, pid);
	int32_t pid = 0;

	return pread(fd, &pid, sizeof(pid), (off_t)at) == (ssize_t)sizeof(pid)
		       ? pid
		       : 0;
}

/* 1: the path still leads to the file behind fd, 0: it does not, -1: errno. */
static int same_inode(int fd, const char *path)
{
	struct stat a, b;

	if (fstat(fd, &a))
		return -1;
	if (lstat(path, &b))
		return errno == ENOENT ? 0 : -1;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The page that lies there says whose it is, if it says anything. */
static enum engram_status busy(int fd, const char *instance,
			       struct engram_error *err)
{
	const int32_t pid = page_pid(fd);

	if (pid > 0)
		engram_error_set(err, ENGRAM_EBUSY,
				 "instance \"%s\" belongs to the engramd with "
				 "pid %d",
				 instance, pid);
	else
		engram_error_set(err, ENGRAM_EBUSY,
				 "instance \"%s\" belongs to another engramd "
				 "that is just starting",
				 instance);
	engram_error_fix(err, "stop it, or give this one another instance "
			      "name");
	return ENGRAM_EBUSY;
}

static enum engram_status page_failed(int sys_errno, const char *what,
				      const char *path,
				      struct engram_error *err)
{
	enum engram_status status =
		engram_error_sys(err, sys_errno, "%s %s", what, path);

	engram_error_fix(err, "check that its directory is mounted and that "
			      "engramd may write there");
	engram_error_path(err, "%s", path);
	return status;
}

static enum engram_status open_page(const char *path, int *fd,
				    struct engram_error *err)
{
	*fd = backing_open_retry(
		path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0640);
	return *fd >= 0 ? ENGRAM_OK : page_failed(errno, "open", path, err);
}

/*
 * 1 or 0, -1: errno.  A page of another size or version is not written over:
 * its readers would see fields move.  Empty: a page that is being made, or
 * was never made.
 */
static int reusable(int fd, uint64_t bytes)
{
	struct engram_control_page head;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st))
		return -1;
	/* Anybody may make a file in /dev/shm, and its owner could write the
	 * page, or cut it short under its readers. */
	if (st.st_uid != geteuid())
		return 0;
	if (!st.st_size)
		return 1;
	if ((uint64_t)st.st_size != bytes)
		return 0;
	do
		n = pread(fd, &head, sizeof(head), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -1;
	return n == (ssize_t)sizeof(head) &&
	       (!head.magic || (head.magic == ENGRAM_CONTROL_MAGIC &&
				(!head.abi_version ||
				 head.abi_version == ENGRAM_ABI_VERSION) &&
				head.page_bytes == sizeof(head)));
}

enum page { PAGE_OURS, PAGE_GONE, PAGE_BUSY, PAGE_FAILED };

/*
 * Lock what open_page found.  Between open and flock the owner may have
 * unlinked it: then the lock is on a file that nobody else will find.  A page
 * that can not be used is unlinked, under its lock.
 */
static enum page lock_found(const struct engram_control_owner *o)
{
	int r = lock_exclusive(o->fd, page_pid);

	if (!r)
		return PAGE_BUSY;
	if (r > 0)
		r = same_inode(o->fd, o->path);
	if (!r)
		return PAGE_GONE;
	if (r > 0)
		r = reusable(o->fd, o->map_bytes);
	if (r > 0)
		return PAGE_OURS;
	if (!r && (!unlink(o->path) || errno == ENOENT))
		return PAGE_GONE;
	return PAGE_FAILED;
}

/* Open and lock the page at o->path; one that is gone, until there is one. */
static enum engram_status lock_page(struct engram_control_owner *o,
				    const char *instance,
				    struct engram_error *err)
{
	for (;;) {
		enum engram_status status = open_page(o->path, &o->fd, err);

		if (status)
			return status;
		switch (lock_found(o)) {
		case PAGE_OURS:
			return ENGRAM_OK;
		case PAGE_BUSY:
			return busy(o->fd, instance, err);
		case PAGE_FAILED:
			return page_failed(errno, "lock", o->path, err);
		case PAGE_GONE:
			backing_close(o->fd);
			o->fd = -1;
		}
	}
}

static enum engram_status size_and_map(struct engram_control_owner *o,
				       struct engram_error *err)
{
	int r;

	if (o->named && fchmod(o->fd, 0640))
		return engram_error_sys(err, errno, "fchmod");
	do
		r = ftruncate(o->fd, (off_t)o->map_bytes);
	while (r && errno == EINTR);
	if (r)
		return engram_error_sys(err, errno, "ftruncate");
	do
		r = fallocate(o->fd, 0, 0, (off_t)o->map_bytes);
	while (r && errno == EINTR);
	if (r)
		return engram_error_sys(err, errno, "fallocate");
	o->page = mmap(NULL, o->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		       o->fd, 0);
	if (o->page == MAP_FAILED) {
		o->page = NULL;
		return engram_error_sys(err, errno, "mmap");
	}
	if (madvise(o->page, o->map_bytes, MADV_DONTFORK))
		return engram_error_sys(err, errno, "madvise");
	return ENGRAM_OK;
}

static enum engram_status random_epoch(uint64_t *epoch,
				       struct engram_error *err)
{
	ssize_t n;

	do {
		n = getrandom(epoch, sizeof(*epoch), 0);
		if (n < 0 && errno != EINTR) {
			enum engram_status status =
				engram_error_sys(err, errno, "getrandom");

			engram_error_fix(err, "allow getrandom in the seccomp "
					      "profile");
			return status;
		}
	} while (n != (ssize_t)sizeof(*epoch) || !*epoch);
	return ENGRAM_OK;
}

void engram_control_publish(struct engram_control_table *slot,
			    uint64_t generation, const uint64_t content_id[2])
{
	/* The owner alone stores it; a former one may have died at this. */
	const uint64_t odd = engram_control_load64(&slot->sequence) | 1;

	engram_control_store64(&slot->sequence, odd);
	engram_control_order_stores();
	FAILPOINT(publish_midway);
	engram_control_store64(&slot->content_id[0], content_id[0]);
	engram_control_store64(&slot->content_id[1], content_id[1]);
	engram_control_store64(&slot->generation, generation);
	engram_control_store64(&slot->sequence, odd + 1);
}

void engram_control_clear(struct engram_control_table *slot)
{
	/* A reader may be between two looks at the sequence: it stays. */
	memset(slot, 0, offsetof(struct engram_control_table, sequence));
	memset(slot->reserved, 0, sizeof(slot->reserved));
}

static void withdraw_tables(struct engram_control_page *p)
{
	static const uint64_t none[2];
	int i;

	/* Generations first: a reader that sees the slot sees no table. */
	for (i = 0; i < ENGRAM_CONTROL_TABLES; i++)
		engram_control_publish(&p->tables[i], 0, none);
	engram_control_order_stores();
	for (i = 0; i < ENGRAM_CONTROL_TABLES; i++)
		engram_control_clear(&p->tables[i]);
}

static void write_page(struct engram_control_page *p, const char *instance,
		       uint64_t epoch)
{
	struct timespec now;

	/* Nothing below may be seen with the old epoch. */
	engram_control_store64(&p->boot_epoch, 0);
	engram_control_order_stores();
	withdraw_tables(p);
	FAILPOINT(own_withdrawn);
	memset(p->instance, 0, sizeof(p->instance));
	memcpy(p->instance, instance, strlen(instance));
	memset(p->reserved, 0, sizeof(p->reserved));
	p->page_bytes = sizeof(*p);
	p->num_tables = ENGRAM_CONTROL_TABLES;
	p->pid = getpid();
	clock_gettime(CLOCK_REALTIME, &now);
	p->start_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	clock_gettime(CLOCK_MONOTONIC, &now);
	engram_control_store64(&p->connections, 0);
	engram_control_store64(&p->requests, 0);
	engram_control_store64(&p->heartbeat_ns,
			       (uint64_t)now.tv_sec * 1000000000 +
				       (uint64_t)now.tv_nsec);
	engram_control_store64(&p->magic, ENGRAM_CONTROL_MAGIC);
	engram_control_store32(&p->abi_version, ENGRAM_ABI_VERSION);
	engram_control_store64(&p->boot_epoch, epoch);
}

static int is_writable(int fd)
{
	const int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
}

/* The page that a former owner had kept, if it can be used; else a new one.
 * There is no lock: nobody but who was given it can have it. */
static enum engram_status open_memfd(struct engram_control_owner *o,
				     const struct engram_backing *backing,
				     struct engram_error *err)
{
	/* A small page is enough. */
	const struct engram_backing small = {.kind = ENGRAM_BACKING_MEMFD};
	int fit;

	o->keeper = backing->keeper;
	o->fd = keeper_open(o->keeper, o->name);
	if (o->fd < 0 && errno != ENOENT)
		return page_failed(errno, "open", o->name, err);
	if (o->fd < 0)
		return backing_create(&small, o->name, &o->fd, err);
	fit = is_writable(o->fd) ? reusable(o->fd, o->map_bytes) : 0;
	if (fit > 0)
		return ENGRAM_OK;
	if (fit < 0)
		return page_failed(errno, "read", o->name, err);
	backing_close(o->fd);
	o->fd = -1;
	keeper_forget(o->keeper, o->name);
	return backing_create(&small, o->name, &o->fd, err);
}

static enum engram_status open_owner(struct engram_control_owner *o,
				     const struct engram_backing *backing,
				     const char *instance,
				     struct engram_error *err)
{
	enum engram_status status;
	uint64_t page;

	control_page_name(o->name, instance);
	if (backing->kind == ENGRAM_BACKING_MEMFD)
		return open_memfd(o, backing, err);
	status = backing_path(o->path, backing, o->name, err);
	if (status)
		return status;
	o->named = 1;
	/* hugetlbfs has files of whole huge pages only. */
	o->fd = backing_open_retry(backing->dir,
				   O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	page = o->fd < 0 ? 0 : segment_page_bytes(o->fd);
	if (!page) {
		status = engram_error_sys(err, errno, "open %s", backing->dir);
		engram_error_fix(err, "check that it is mounted");
		engram_error_path(err, "%s", backing->dir);
		return status;
	}
	backing_close(o->fd);
	o->fd = -1;
	o->map_bytes = round_up(sizeof(*o->page), page);
	return lock_page(o, instance, err);
}

/* Names stay. */
static void release(struct engram_control_owner *o)
{
	if (o->page)
		munmap(o->page, o->map_bytes);
	backing_close(o->fd);
	free(o);
}

enum engram_status engram_control_claim(const struct engram_backing *backing,
					const char *instance,
					struct engram_control_owner **out,
					struct engram_error *err)
{
	struct engram_control_owner *o;
	enum engram_status status;

	*out = NULL;
	if (!engram_instance_valid(instance)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "\"%s\" is no instance name", instance);
		engram_error_fix(err, "use 1..63 of A-Z a-z 0-9 _ -");
		return ENGRAM_EINVAL;
	}
	o = calloc(1, sizeof(*o));
	if (!o) {
		status = engram_error_sys(err, ENOMEM, "control page");
		engram_error_fix(err, "free some memory");
		return status;
	}
	o->fd = -1;
	o->map_bytes =
		round_up(sizeof(*o->page), (uint64_t)sysconf(_SC_PAGESIZE));
	status = open_owner(o, backing, instance, err);
	if (status) {
		release(o);
		return status;
	}
	FAILPOINT(own_locked);
	*out = o;
	return ENGRAM_OK;
}

enum engram_status engram_control_own(const struct engram_backing *backing,
				      const char *instance,
				      struct engram_control_owner **out,
				      struct engram_error *err)
{
	struct engram_control_owner *o;
	enum engram_status status;
	uint64_t epoch = 0;

	*out = NULL;
	status = random_epoch(&epoch, err);
	if (!status)
		status = engram_control_claim(backing, instance, &o, err);
	if (status)
		return status;
	status = size_and_map(o, err);
	if (status) {
		engram_error_context(err, "control page %s", o->path);
		engram_error_fix(err, "%s %s",
				 status == ENGRAM_ENOSPACE ||
						 status == ENGRAM_ENOMEM
					 ? "make room in"
					 : "check what is mounted on",
				 *backing->dir ? backing->dir : "memory");
		/* A name that this call made stays: to unlink it without the
		 * lock could take it from another, and an empty page is taken
		 * over. */
		release(o);
		return status;
	}
	write_page(o->page, instance, epoch);
	FAILPOINT(own_written);
	if (o->keeper && !engram_keeper_has(o->keeper, o->name))
		keeper_keep(o->keeper, o->name, o->fd);
	*out = o;
	return ENGRAM_OK;
}

struct engram_control_page *engram_control_owner_page(
	struct engram_control_owner *owner)
{
	return owner->page;
}

enum engram_status engram_control_reopen(
	const struct engram_control_owner *owner, int *fd,
	struct engram_error *err)
{
	return backing_reopen(owner->fd, owner->named ? owner->path : NULL,
			      O_RDONLY, fd, err);
}

void engram_control_disown(struct engram_control_owner *owner, int remove)
{
	if (!owner)
		return;
	if (owner->page) {
		withdraw_tables(owner->page);
		engram_control_store64(&owner->page->boot_epoch, 0);
	}
	FAILPOINT(stop_withdrawn);
	/* Unlinked under the lock, so that it is no successor's page. */
	if (remove && owner->named)
		unlink(owner->path);
	else if (remove)
		keeper_forget(owner->keeper, owner->name);
	FAILPOINT(stop_unlinked);
	release(owner);
}

enum engram_status engram_control_owned(const struct engram_backing *backing,
					const char *instance, int *owned,
					struct engram_error *err)
{
	char path[SEGMENT_PATH_MAX], name[256];
	enum engram_status status;
	int fd, locked;

	*owned = 0;
	if (backing->kind == ENGRAM_BACKING_MEMFD)
		return ENGRAM_OK;
	control_page_name(name, instance);
	status = backing_path(path, backing, name, err);
	if (status)
		return status;
	fd = backing_open_retry(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0 && errno == ENOENT)
		return ENGRAM_OK;
	if (fd < 0)
		return page_failed(errno, "open", path, err);
	/* Shared, so that two who ask do not see each other. */
	locked = lock_try(fd, LOCK_SH);
	if (locked < 0)
		status = page_failed(errno, "lock", path, err);
	*owned = !locked;
	backing_close(fd);
	return status;
}
