/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation and system call of a whole load fails in turn, from the
 * checkpoint's directory to the published segments.  A load that fails says
 * why and leaves nothing; one that could do without the call is whole.
 * Likewise of a load that takes over what a former engramd has left: that is
 * never lost when memory or descriptors run out.
 * What was allocated and not freed is told by a build with SANITIZE=address.
 */
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "../unit/synth_fixture.h"
#include "inject.h"
#include "load.h"
#include "manifest.h"
#include "log.h"

/* ---- calls that only a load makes ---- */

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **out, const char *fmt, ...);
int __real_scandir(const char *dir, struct dirent ***list,
		   int (*filter)(const struct dirent *),
		   int (*compare)(const struct dirent **,
				  const struct dirent **));
int __wrap_scandir(const char *dir, struct dirent ***list,
		   int (*filter)(const struct dirent *),
		   int (*compare)(const struct dirent **,
				  const struct dirent **));
ssize_t __real_read(int fd, void *out, size_t size);
ssize_t __wrap_read(int fd, void *out, size_t size);
ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at);
int __real_stat(const char *path, struct stat *st);
int __wrap_stat(const char *path, struct stat *st);
int __real_mlock(const void *base, size_t bytes);
int __wrap_mlock(const void *base, size_t bytes);
int __real_mlock2(const void *base, size_t bytes, unsigned int flags);
int __wrap_mlock2(const void *base, size_t bytes, unsigned int flags);

/* Of a kernel that has none. */
static bool no_mlock2;

#define FAIL(call, interruptible, usual, value)                              \
	do {                                                                 \
		const int fault_ = inject_fault(call, interruptible, usual); \
		if (fault_) {                                                \
			errno = fault_;                                      \
			return value;                                        \
		}                                                            \
	} while (0)

char *__wrap_strdup(const char *text)
{
	FAIL("strdup", false, ENOMEM, NULL);
	return __real_strdup(text);
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
	va_list args;
	int n;

	*out = NULL;
	FAIL("asprintf", false, ENOMEM, -1);
	va_start(args, fmt);
	n = vasprintf(out, fmt, args);
	va_end(args);
	return n;
}

int __wrap_scandir(const char *dir, struct dirent ***list,
		   int (*filter)(const struct dirent *),
		   int (*compare)(const struct dirent **,
				  const struct dirent **))
{
	FAIL("scandir", false, EMFILE, -1);
	return __real_scandir(dir, list, filter, compare);
}

ssize_t __wrap_read(int fd, void *out, size_t size)
{
	FAIL("read", true, EIO, -1);
	return __real_read(fd, out, size);
}

ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at)
{
	FAIL("preadv", true, EIO, -1);
	return __real_preadv(fd, iov, n, at);
}

int __wrap_stat(const char *path, struct stat *st)
{
	FAIL("stat", false, EACCES, -1);
	return __real_stat(path, st);
}

int __wrap_mlock(const void *base, size_t bytes)
{
	FAIL("mlock", false, ENOMEM, -1);
	return __real_mlock(base, bytes);
}

/* Kernels that do not know it are told from limits. */
int __wrap_mlock2(const void *base, size_t bytes, unsigned int flags)
{
	FAIL("mlock2", false, no_mlock2 ? ENOSYS : ENOMEM, -1);
	if (no_mlock2) {
		errno = ENOSYS;
		return -1;
	}
	return __real_mlock2(base, bytes, flags);
}

/* ---- the load ---- */

static char instance[64];
static char checkpoint[] = "/tmp/engram-load-faults-XXXXXX";
static char model[64];
static struct engram_keeper *keeper; /* of memfds that are left */

struct way {
	const char *name;
	enum loader_engine engine;
	enum engram_record_layout layout;
	enum memory_lock lock;
	enum engram_backing_kind backing;
	bool adopts; /* what is there is left to the next */
	enum adopt_mode adopt;
	bool no_mlock2;
};

/* What engramd would show: all layers, with the right bytes. */
static void check_whole(const struct generation *gen)
{
	struct engram_segment_map map;
	struct engram_error err;
	uint32_t i;

	CHECK(gen->num_layers == 2);
	for (i = 0; i < 2; i++) {
		CHECK_OK(engram_segment_map_fd(gen->layers[i].fd, 0, UINT64_MAX,
					       &map, &err));
		CHECK_OK(engram_segment_verify(&map, 0, map.row_end,
					       &(uint64_t){0}, &err));
		engram_segment_unmap(&map);
	}
}

static struct engram_backing backing_of(const struct way *way)
{
	if (way->backing == ENGRAM_BACKING_SHM)
		return fixture_shm();
	return (struct engram_backing){
		.kind = way->backing,
		.keeper = way->adopts ? keeper : NULL,
	};
}

static enum engram_status load_once(const struct way *way,
				    struct engram_error *err)
{
	struct table_spec spec = {.config = {.name = (char *)"demo",
					     .checkpoint = model,
					     .layout = way->layout,
					     .verify = true,
					     .format = TABLE_FORMAT_DEFAULT}};
	struct memory_ledger ledger;
	struct job job = {.id = 1};
	struct load load = {
		.instance = instance,
		.lock = way->lock,
		.options = {.engine = way->engine, .threads = 1},
		.ledger = &ledger,
		.spec = &spec,
		.number = 1,
		.adopt = way->adopts ? way->adopt : ADOPT_OFF,
	};
	enum engram_status status;

	load.backing = backing_of(way);
	status = memory_ledger_init(&ledger, "", err);
	if (status)
		return status;
	status = load_build(&load, &job, err);
	if (!status) {
		/* Whole, and fit to look at without faults. */
		const bool failed = inject_disarm();

		check_whole(load.gen);
		if (way->adopts)
			generation_leave(load.gen);
		else
			generation_free(load.gen);
		if (failed)
			err->status = ENGRAM_STATUS_COUNT;
	}
	memory_ledger_free(&ledger);
	return status;
}

/* How many names there were. */
static size_t remove_left(void)
{
	struct engram_backing shm = fixture_shm();
	struct engram_segment_entry *list;
	struct engram_error err;
	size_t n, i;

	CHECK_OK(engram_segment_list(&shm, instance, &list, &n, &err));
	for (i = 0; i < n; i++)
		CHECK_OK(engram_segment_remove(&shm, list[i].name, &err));
	free(list);
	return n;
}

static void nothing_left(const struct way *way, int nth, int fds)
{
	const size_t names = remove_left();

	/* A name whose unlink failed stays, for prune to find. */
	if (count_fds() == fds && (!names || !strcmp(inject_call(), "unlink")))
		return;
	fprintf(stderr, "%s: %s, call %d: something is left\n", way->name,
		inject_call(), nth);
	exit(1);
}

static void sweep(const struct way *way)
{
	const int fds = count_fds();
	int nth, survived = 0;

	no_mlock2 = way->no_mlock2;

	for (nth = 1;; nth++) {
		struct engram_error err = {0};
		enum engram_status status;
		bool failed;

		inject_arm(
			&(struct inject_plan){.nth = nth, .any_thread = true});
		status = load_once(way, &err);
		failed = inject_disarm() || err.status == ENGRAM_STATUS_COUNT;
		if (status && (!err.message[0] || err.status != status)) {
			fprintf(stderr, "%s: %s, call %d: %d without a word\n",
				way->name, inject_call(), nth, status);
			exit(1);
		}
		nothing_left(way, nth, fds);
		if (!failed) {
			CHECK_OK(status);
			break;
		}
		survived += !status;
	}
	CHECK(nth > 100); /* or the shim sees nothing */
	printf("%s: %d calls failed in turn, %d loads did without\n", way->name,
	       nth - 1, survived);
}

/* The inodes of both layers' segments. */
static void find_left(const struct way *way, ino_t inodes[2])
{
	const struct engram_backing backing = backing_of(way);
	struct engram_segment_entry *list;
	struct engram_error err;
	struct stat st;
	size_t n, i;
	int fd;

	CHECK_OK(engram_segment_list(&backing, instance, &list, &n, &err));
	CHECK(n == 2);
	for (i = 0; i < n; i++) {
		CHECK_OK(
			engram_segment_open(&backing, list[i].name, &fd, &err));
		CHECK(!fstat(fd, &st));
		close(fd);
		inodes[list[i].layer_id > list[!i].layer_id] = st.st_ino;
	}
	free(list);
}

/* Whatever call lacks memory or descriptors, the load takes the segments over
 * or fails and lets them be. */
static void sweep_left(const struct way *way, int number)
{
	const int fds = count_fds();
	ino_t before[2], now[2];
	int nth, failures = 0;
	bool failed = true;

	find_left(way, before);
	for (nth = 1; failed; nth++) {
		struct engram_error err = {0};
		enum engram_status status;

		inject_arm(&(struct inject_plan){
			.nth = nth, .any_thread = true, .number = number});
		status = load_once(way, &err);
		failed = inject_disarm() || err.status == ENGRAM_STATUS_COUNT;
		find_left(way, now);
		if (memcmp(before, now, sizeof(now)) || count_fds() != fds ||
		    (status && (err.status != status || !err.message[0]))) {
			fprintf(stderr, "%s: %s, call %d: %d \"%s\"\n",
				way->name, inject_call(), nth, status,
				err.message);
			exit(1);
		}
		failures += status != ENGRAM_OK;
	}
	CHECK(failures > 20); /* or the shim sees nothing */
	printf("%s: errno %d of %d calls in turn, %d loads failed\n", way->name,
	       number, nth - 2, failures);
}

/* ---- who keeps memfds ---- */

static struct {
	char name[256];
	int fd;
} kept[2];
static int num_kept;

static int keep(void *ctx, const char *name, int fd, size_t count)
{
	(void)ctx;
	CHECK(count == (size_t)num_kept && num_kept < 2);
	snprintf(kept[num_kept].name, sizeof(kept[0].name), "%s", name);
	kept[num_kept++].fd = dup(fd);
	return 1;
}

static void forget(void *ctx, const char *name)
{
	(void)ctx;
	fprintf(stderr, "%s: let go of %s\n", inject_call(), name);
	exit(1);
}

static void test_memfds(void)
{
	static const struct way ways[] = {
		{"adopted, memfd, verified", LOADER_PREADV, ENGRAM_PACKED,
		 MEMORY_LOCK_OFF, ENGRAM_BACKING_MEMFD, true, ADOPT_VERIFY,
		 false},
		{"adopted, memfd, locked", LOADER_PREADV, ENGRAM_PACKED,
		 MEMORY_LOCK_REQUIRE, ENGRAM_BACKING_MEMFD, true, ADOPT_TRUST,
		 false},
	};
	static const struct engram_keeper_ops ops = {keep, forget};
	struct engram_error err;

	keeper = engram_keeper_new(instance, &ops, NULL);
	CHECK(keeper);
	CHECK_OK(load_once(&ways[0], &err));
	CHECK(num_kept == 2);
	engram_keeper_free(keeper);

	keeper = engram_keeper_new(instance, &ops, NULL);
	CHECK(keeper);
	for (size_t i = 0; i < 2; i++)
		CHECK(engram_keeper_inherit(keeper, kept[i].name, kept[i].fd));
	sweep_left(&ways[0], ENOMEM);
	sweep_left(&ways[1], EMFILE);
	CHECK(num_kept == 2);
	engram_keeper_free(keeper);
}

static void test_left(void)
{
	static const struct way ways[] = {
		{"adopted, verified", LOADER_PREADV, ENGRAM_PACKED,
		 MEMORY_LOCK_OFF, ENGRAM_BACKING_SHM, true, ADOPT_VERIFY,
		 false},
		{"adopted, locked", LOADER_PREADV, ENGRAM_PACKED,
		 MEMORY_LOCK_REQUIRE, ENGRAM_BACKING_SHM, true, ADOPT_TRUST,
		 false},
	};
	static const int numbers[] = {ENOMEM, EMFILE, ENFILE};
	struct engram_error err;

	CHECK_OK(load_once(&ways[0], &err));
	for (size_t i = 0; i < 2; i++)
		for (size_t j = 0; j < 3; j++)
			sweep_left(&ways[i], numbers[j]);
	CHECK(remove_left() == 2);
}

/* Loads are compared with it. */
static void write_manifest(void)
{
	const struct checkpoint_options options = {.dir = model};
	const struct loader_options usual = {.threads = 1};
	static struct loader_progress progress;
	struct checkpoint *c;
	struct engram_error err;
	struct manifest m;

	CHECK_OK(checkpoint_open(&options, &c, &err));
	CHECK_OK(manifest_make(c, &usual, NULL, &progress, &m, &err));
	CHECK_OK(manifest_write(&m, model, &err));
	manifest_free(&m);
	checkpoint_free(c);
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {
		{"preadv, packed, shm", LOADER_PREADV, ENGRAM_PACKED,
		 MEMORY_LOCK_TRY, ENGRAM_BACKING_SHM, false, ADOPT_OFF, false},
		{"preadv, packed, shm, locked at the end", LOADER_PREADV,
		 ENGRAM_PACKED, MEMORY_LOCK_REQUIRE, ENGRAM_BACKING_SHM, false,
		 ADOPT_OFF, true},
		{"preadv, split, memfd, locked", LOADER_PREADV, ENGRAM_SPLIT,
		 MEMORY_LOCK_REQUIRE, ENGRAM_BACKING_MEMFD, false, ADOPT_OFF,
		 false},
		{"any engine, packed, shm", LOADER_AUTO, ENGRAM_PACKED,
		 MEMORY_LOCK_OFF, ENGRAM_BACKING_SHM, false, ADOPT_OFF, false},
	};

	(void)argc;
	log_set_level(LOG_ERROR); /* thousands of faults are expected */
	fixture_instance(instance, "load-faults");
	synth_make(argv[0], checkpoint, model);
	write_manifest();
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		sweep(&ways[i]);
	test_left();
	test_memfds();
	synth_remove(checkpoint);
	return 0;
}
