/* SPDX-License-Identifier: Apache-2.0 */
/* Memfds that somebody keeps under names: what a directory is to files. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "backing.h"
#include "engram_control.h"
#include "keeper.h"
#include "segment_fixture.h"
#include "segment_writer.h"

static struct engram_error err;

/* A keeper that writes down what it is told. */
static struct {
	char kept[256], forgotten[256];
	int keeps, forgets;
	int refuses;
	ino_t inode;
} told;

static int keep(void *ctx, const char *name, int fd, size_t count)
{
	struct stat st;

	CHECK(ctx == &told && !fstat(fd, &st));
	snprintf(told.kept, sizeof(told.kept), "%zu %s", count, name);
	told.keeps++;
	told.inode = st.st_ino;
	return !told.refuses;
}

static void forget(void *ctx, const char *name)
{
	CHECK(ctx == &told);
	snprintf(told.forgotten, sizeof(told.forgotten), "%s", name);
	told.forgets++;
}

static struct engram_keeper *new_keeper(void)
{
	static const struct engram_keeper_ops ops = {keep, forget};
	struct engram_keeper *k = engram_keeper_new("me", &ops, &told);

	CHECK(k);
	memset(&told, 0, sizeof(told));
	return k;
}

static int new_memfd(void)
{
	int fd = memfd_create("keeper", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	return fd;
}

static size_t listed(struct engram_keeper *k, const char *instance)
{
	const struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD,
					       .keeper = k};
	struct engram_segment_entry *list;
	size_t n;

	CHECK_OK(engram_segment_list(&backing, instance, &list, &n, &err));
	free(list);
	return n;
}

static void test_inherit(void)
{
	static const char good[] = "engramd.me.demo.1.g1";
	static const char *const bad[] = {
		"",
		"stored",
		"engramd.you.demo.1.g1",
		"engramd.me.demo.1.g1.tmp",
		"engramd.me.demo.1",
	};
	const int fds = count_fds();
	struct engram_keeper *k = new_keeper();
	int fd, pipe_fds[2];
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK(!engram_keeper_inherit(k, bad[i], new_memfd()));
		CHECK_STR(told.forgotten, bad[i]);
		CHECK(told.forgets == (int)i + 1);
	}
	CHECK(!pipe(pipe_fds));
	close(pipe_fds[1]);
	CHECK(!engram_keeper_inherit(k, good, pipe_fds[0]));
	CHECK_STR(told.forgotten, good);
	CHECK(count_fds() == fds && !engram_keeper_count(k));

	CHECK(engram_keeper_inherit(k, good, new_memfd()));
	CHECK(engram_keeper_inherit(k, "engramd.me.ctl", new_memfd()));
	CHECK(engram_keeper_count(k) == 2 && engram_keeper_has(k, good));
	CHECK(listed(k, NULL) == 2 && listed(k, "me") == 2 &&
	      !listed(k, "you"));
	fd = keeper_open(k, good);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	close(fd);
	CHECK(keeper_open(k, "engramd.me.demo.2.g1") < 0 && errno == ENOENT);

	/* Twice: both go. */
	CHECK(!engram_keeper_inherit(k, good, new_memfd()));
	CHECK(!engram_keeper_has(k, good) && engram_keeper_count(k) == 1);
	CHECK(!told.keeps);
	engram_keeper_free(k);
	CHECK(count_fds() == fds);
}

static void test_keep(void)
{
	static const char name[] = "engramd.me.demo.1.g1";
	struct engram_keeper *k = new_keeper();
	const int fd = new_memfd(), fds = count_fds();

	CHECK(keeper_keep(k, name, fd));
	CHECK_STR(told.kept, "0 engramd.me.demo.1.g1");
	CHECK(engram_keeper_has(k, name));
	/* What this process made it has itself. */
	CHECK(keeper_open(k, name) < 0 && errno == ENOENT);
	CHECK(keeper_keep(k, "engramd.me.demo.2.g1", fd));
	CHECK_STR(told.kept, "1 engramd.me.demo.2.g1");
	/* Again, in place of it. */
	CHECK(!told.forgets && keeper_keep(k, name, fd) && told.forgets == 1);
	CHECK(engram_keeper_count(k) == 2);
	told.refuses = 1;
	CHECK(!keeper_keep(k, "engramd.me.demo.3.g1", fd));
	CHECK(!engram_keeper_has(k, "engramd.me.demo.3.g1"));
	CHECK(engram_keeper_count(k) == 2);
	keeper_forget(k, name);
	CHECK_STR(told.forgotten, name);
	CHECK(told.forgets == 2 && engram_keeper_count(k) == 1);
	keeper_forget(k, name);
	CHECK(told.forgets == 2);
	CHECK(!keeper_keep(NULL, name, fd) && keeper_open(NULL, name) < 0);
	keeper_forget(NULL, name);
	engram_keeper_free(k);
	engram_keeper_free(NULL);
	CHECK(told.forgets == 2 && count_fds() == fds);
	close(fd);
}

static struct engram_segment_writer *publish(const struct engram_backing *b)
{
	struct engram_segment_spec spec = fixture_spec("me", ENGRAM_PACKED);
	struct engram_segment_writer *w;

	CHECK_OK(engram_segment_create(b, &spec, &w, &err));
	CHECK_OK(engram_segment_reserve(
		w, 0, engram_segment_writer_header(w)->total_bytes, &err));
	fixture_fill(w);
	CHECK(!told.keeps); /* it is not whole yet */
	CHECK_OK(engram_segment_publish(w, &err));
	return w;
}

/* From one owner to the next: published, left, adopted, discarded. */
static void test_segment(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_spec spec = fixture_spec("me", ENGRAM_PACKED);
	struct engram_segment_writer *w;
	const int fds = count_fds();
	char name[256];
	int fd;

	engram_segment_name(name, "me", spec.table, 14, 3);
	backing.keeper = new_keeper();
	w = publish(&backing);
	CHECK(told.keeps == 1 && strstr(told.kept, name));
	fd = fcntl(w->fd, F_DUPFD_CLOEXEC, 0);
	engram_segment_leave(w);
	CHECK(!told.forgets && engram_keeper_has(backing.keeper, name));
	engram_keeper_free(backing.keeper);

	backing.keeper = new_keeper();
	CHECK(engram_keeper_inherit(backing.keeper, name, fd));
	CHECK_OK(engram_segment_adopt(&backing, name, &w, &err));
	CHECK_OK(engram_segment_compare(engram_segment_writer_header(w), &spec,
					&err));
	engram_segment_leave(w);
	CHECK(!told.forgets);
	CHECK_OK(engram_segment_adopt(&backing, name, &w, &err));
	engram_segment_discard(w);
	CHECK(told.forgets == 1);
	CHECK_STR(told.forgotten, name);
	CHECK(!engram_keeper_count(backing.keeper) && count_fds() == fds);
	CHECK(engram_segment_adopt(&backing, name, &w, &err) ==
	      ENGRAM_ENOTFOUND);
	engram_keeper_free(backing.keeper);

	/* Nobody keeps it: it is as good, and nobody is told to let go. */
	backing.keeper = new_keeper();
	told.refuses = 1;
	engram_segment_discard(publish(&backing));
	CHECK(told.keeps == 1 && !told.forgets);
	engram_keeper_free(backing.keeper);
	CHECK(count_fds() == fds);
}

/* What a reader could be hurt through. */
static void test_not_sealed(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_writer *w;
	char name[256], bytes[4096];
	const char *table = fixture_spec("me", ENGRAM_PACKED).table;
	const int seals[] = {0, SEGMENT_SEALS & ~F_SEAL_SHRINK,
			     SEGMENT_SEALS & ~F_SEAL_FUTURE_WRITE};
	size_t i;

	engram_segment_name(name, "me", table, 14, 3);
	backing.keeper = new_keeper();
	w = publish(&backing);
	keeper_forget(backing.keeper, name);
	for (i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		struct engram_segment_writer *adopted;
		int fd = new_memfd();
		off_t at = 0;
		ssize_t n;

		while ((n = pread(w->fd, bytes, sizeof(bytes), at)) > 0) {
			CHECK(pwrite(fd, bytes, (size_t)n, at) == n);
			at += n;
		}
		CHECK(!fcntl(fd, F_ADD_SEALS, seals[i]));
		CHECK(engram_keeper_inherit(backing.keeper, name, fd));
		CHECK(engram_segment_adopt(&backing, name, &adopted, &err) ==
		      ENGRAM_EDAMAGED);
		CHECK(strstr(err.message, "is not sealed against writing"));
		CHECK_OK(engram_segment_remove(&backing, name, &err));
		CHECK_STR(told.forgotten, name);
	}
	engram_segment_discard(w);
	engram_keeper_free(backing.keeper);
}

/* The page is the same memory under the next owner. */
static void test_control(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	const struct engram_control_page *page;
	struct engram_control_owner *o;
	const int fds = count_fds();
	uint64_t first;
	int fd, kept;

	backing.keeper = new_keeper();
	CHECK_OK(engram_control_own(&backing, "me", &o, &err));
	CHECK_STR(told.kept, "0 engramd.me.ctl");
	CHECK_OK(engram_control_reopen(o, &fd, &err));
	CHECK_OK(engram_control_map_fd(fd, &page, &err));
	close(fd);
	first = engram_control_load64(&page->boot_epoch);
	CHECK(first);
	/* What the service manager has: the same open file. */
	CHECK_OK(engram_control_reopen(o, &fd, &err));
	CHECK_OK(backing_reopen(fd, NULL, O_RDWR, &kept, &err));
	close(fd);
	engram_control_disown(o, 0);
	CHECK(!told.forgets && !engram_control_load64(&page->boot_epoch));
	engram_keeper_free(backing.keeper);

	backing.keeper = new_keeper();
	CHECK(engram_keeper_inherit(backing.keeper, "engramd.me.ctl", kept));
	CHECK_OK(engram_control_own(&backing, "me", &o, &err));
	CHECK(!told.keeps); /* it has it */
	CHECK(engram_control_load64(&page->boot_epoch) ==
	      engram_control_owner_page(o)->boot_epoch);
	CHECK(engram_control_load64(&page->boot_epoch) != first);
	engram_control_disown(o, 1);
	CHECK_STR(told.forgotten, "engramd.me.ctl");
	CHECK(!engram_control_load64(&page->boot_epoch));
	engram_control_unmap(page);
	engram_keeper_free(backing.keeper);
	CHECK(count_fds() == fds);
}

int main(void)
{
	test_inherit();
	test_keep();
	test_segment();
	test_not_sealed();
	test_control();
	return 0;
}
