/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call that the life of a segment and of a control page makes fails in
 * turn: an error with a message and a fix, and no descriptor, mapping or name
 * stays behind.  What was allocated and not freed is told by a build with
 * SANITIZE=address.
 */
#include <errno.h>

#include "../unit/segment_fixture.h"
#include "backing.h"
#include "engram_control.h"
#include "inject.h"

static char instance[64];
static struct engram_error err;
static struct engram_backing backing;

/* Mappings of this test's segments and control pages. */
static int count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, instance) != NULL;
	fclose(f);
	return n;
}

static enum engram_status map_and_check(struct engram_segment_writer *w)
{
	struct engram_segment_map map;
	enum engram_status status;
	int fd;

	status = engram_segment_reopen(w, &fd, &err);
	if (status) {
		CHECK(fd < 0);
		return status;
	}
	status = engram_segment_map_fd(fd, 1, FIXTURE_ROWS, &map, &err);
	if (status)
		CHECK(!map.header && !map.data_map[0] && !map.data_map[1]);
	close(fd);
	engram_segment_unmap(&map);
	return status;
}

/* A device that needs a writable mapping; of a memfd there is none. */
static enum engram_status map_writable(struct engram_segment_writer *w)
{
	struct engram_segment_map map;
	enum engram_status status;
	int fd;

	if (backing.kind == ENGRAM_BACKING_MEMFD)
		return ENGRAM_OK;
	status = engram_segment_reopen_writable(w, &fd, &err);
	if (status) {
		CHECK(fd < 0);
		return status;
	}
	status = engram_segment_map_writable(fd, 1, FIXTURE_ROWS, &map, &err);
	if (status)
		CHECK(!map.header && !map.data_map[0] && !map.data_map[1]);
	else
		status = engram_segment_protect(&map, &err);
	close(fd);
	engram_segment_unmap(&map);
	return status;
}

/* From the plan to the end of a segment. */
static enum engram_status segment_life(uint32_t layout)
{
	struct engram_segment_spec spec = fixture_spec(instance, layout);
	struct engram_segment_writer *w;
	enum engram_status status;

	status = engram_segment_create(&backing, &spec, &w, &err);
	if (status) {
		CHECK(!w);
		return status;
	}
	status = engram_segment_reserve(
		w, 0, engram_segment_writer_header(w)->total_bytes, &err);
	if (!status)
		status = engram_segment_publish(w, &err);
	if (!status)
		status = map_and_check(w);
	if (!status)
		status = map_writable(w);
	engram_segment_discard(w);
	return status;
}

static enum engram_status packed_life(void)
{
	return segment_life(ENGRAM_PACKED);
}

static enum engram_status split_life(void)
{
	return segment_life(ENGRAM_SPLIT);
}

/* What a killed sidecar leaves. */
static void leave_name(void)
{
	char name[256];
	int fd;

	engram_segment_name(name, instance, "left", 1, 1);
	CHECK_OK(backing_create(&backing, name, &fd, &err));
	close(fd);
}

/* Is published, and has no owner. */
static void leave_segment(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_segment_writer *w;

	CHECK_OK(engram_segment_create(&backing, &spec, &w, &err));
	CHECK_OK(engram_segment_reserve(
		w, 0, engram_segment_writer_header(w)->total_bytes, &err));
	CHECK_OK(engram_segment_publish(w, &err));
	engram_segment_leave(w);
}

/* Who fails to adopt tells by sys_errno what was lacking, and the segment
 * stays. */
static enum engram_status adopt(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_segment_writer *w;
	enum engram_status status;
	char name[256];

	engram_segment_name(name, instance, spec.table, spec.head.layer_id, 3);
	status = engram_segment_adopt(&backing, name, &w, &err);
	CHECK(!status == !!w);
	if (status)
		CHECK(err.sys_errno);
	else
		engram_segment_leave(w);
	return status;
}

/* The next generation in a segment's memory: until it is taken it is what it
 * was, and after that it is discarded. */
static enum engram_status overwrite_life(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_segment_writer *w;
	enum engram_status status;
	char name[256];

	engram_segment_name(name, instance, spec.table, 14, 3);
	status = engram_segment_adopt(&backing, name, &w, &err);
	if (status)
		return status;
	spec.generation = 4;
	status = engram_segment_check_overwrite(
		&backing, engram_segment_writer_header(w), &spec, &err);
	if (!status)
		status = engram_segment_unprotect(w, &err);
	if (!status)
		status = engram_segment_overwrite(w, &spec, &err);
	if (status) {
		CHECK(engram_segment_writer_header(w)->state ==
		      ENGRAM_SEGMENT_READY);
		engram_segment_leave(w);
		return status;
	}
	status = engram_segment_publish(w, &err);
	engram_segment_discard(w);
	return status;
}

static enum engram_status list_and_remove(void)
{
	struct engram_segment_entry *list;
	enum engram_status status;
	char name[256];
	size_t n;
	int fd;

	status = engram_segment_list(&backing, instance, &list, &n, &err);
	if (status) {
		CHECK(!list && !n);
		return status;
	}
	CHECK(n == 1);
	free(list);
	engram_segment_name(name, instance, "none", 1, 1);
	status = engram_segment_open(&backing, name, &fd, &err);
	CHECK(status && fd < 0);
	if (status != ENGRAM_ENOTFOUND)
		return status;
	engram_segment_name(name, instance, "left", 1, 1);
	return engram_segment_remove(&backing, name, &err);
}

static enum engram_status owned(void)
{
	int yes;

	return engram_control_owned(&backing, instance, &yes, &err);
}

static enum engram_status control_life(void)
{
	const struct engram_control_page *page = NULL;
	struct engram_control_owner *o;
	enum engram_status status;
	int fd;

	status = engram_control_own(&backing, instance, &o, &err);
	if (status) {
		CHECK(!o);
		return status;
	}
	status = engram_control_reopen(o, &fd, &err);
	if (!status) {
		status = engram_control_map_fd(fd, &page, &err);
		CHECK(!status == !!page);
		close(fd);
	}
	engram_control_unmap(page);
	if (!status)
		status = owned();
	engram_control_disown(o, 1);
	return status;
}

/* What an unlink that fails leaves is no fault of who called it, and so is
 * the empty page of one who could not become the owner. */
static void remove_left(void)
{
	struct engram_backing shm = fixture_shm();
	struct engram_segment_entry *list;
	size_t n, i;

	CHECK_OK(engram_segment_list(&shm, instance, &list, &n, &err));
	for (i = 0; i < n; i++)
		CHECK_OK(engram_segment_remove(&shm, list[i].name, &err));
	free(list);
}

static void after(const char *what, int nth, enum engram_status status, int fds)
{
	if (status && (err.status != status || !*err.message || !*err.fix)) {
		fprintf(stderr, "%s: %s, call %d: %d %d \"%s\" \"%s\"\n", what,
			inject_call(), nth, status, err.status, err.message,
			err.fix);
		exit(1);
	}
	if (count_fds() != fds || count_maps() ||
	    (count_names("/dev/shm", instance) && strcmp(what, "control") &&
	     strcmp(what, "list") && strcmp(what, "adopt") &&
	     strcmp(what, "overwrite") && strcmp(inject_call(), "unlink"))) {
		fprintf(stderr, "%s: %s, call %d: something is left\n", what,
			inject_call(), nth);
		exit(1);
	}
	CHECK(strcmp(what, "adopt") || count_names("/dev/shm", instance) == 1);
	remove_left();
}

static void sweep(const char *what, enum engram_status (*life)(void),
		  bool interrupt)
{
	const int fds = count_fds();
	enum engram_status status;
	bool failed = true;
	int nth;

	for (nth = 1; failed; nth++) {
		memset(&err, 0, sizeof(err));
		if (life == list_and_remove)
			leave_name();
		if (life == adopt || life == overwrite_life)
			leave_segment();
		inject_arm(&(struct inject_plan){.nth = nth,
						 .interrupt = interrupt});
		status = life();
		failed = inject_disarm();
		/* An interruption is never seen, an error always, except on
		 * the way out, and of what only asks for huge pages. */
		if (failed && !interrupt
			    ? !status && strcmp(inject_call(), "munmap") &&
				      strcmp(inject_call(), "unlink") &&
				      strcmp(inject_call(), "madvise_huge")
			    : status) {
			fprintf(stderr, "%s: %s, call %d: %s\n", what,
				inject_call(), nth, err.message);
			exit(1);
		}
		after(what, nth, status, fds);
	}
	printf("%s in %s: %d calls %s in turn\n", what,
	       *backing.dir ? backing.dir : "memfd", nth - 2,
	       interrupt ? "were interrupted" : "failed");
}

static const struct {
	const char *what;
	enum engram_status (*life)(void);
} lives[] = {
	{"packed", packed_life},   {"split", split_life},
	{"list", list_and_remove}, {"control", control_life},
	{"adopt", adopt},	   {"overwrite", overwrite_life},
};

/* Without /proc a published segment is opened again by its name. */
static void test_no_proc(void)
{
	static const struct inject_plan no_proc = {
		.nth = 2, .calls = "open", .number = ENOENT};

	backing = fixture_shm();
	inject_arm(&no_proc);
	CHECK_OK(packed_life());
	CHECK(inject_disarm());
	backing = (struct engram_backing){.kind = ENGRAM_BACKING_MEMFD};
	inject_arm(&(struct inject_plan){
		.nth = 1, .calls = "open", .number = ENOENT});
	CHECK(packed_life() == ENGRAM_ENOTFOUND);
	CHECK(inject_disarm());
	CHECK(strstr(err.message, "reopen read-only by /proc/self/fd/"));
	CHECK_STR(err.fix, "mount /proc, and raise RLIMIT_NOFILE if "
			   "descriptors ran out");
	CHECK(!count_maps() && !count_names("/dev/shm", instance));
}

/* A memfd has no room to speak of. */
static void test_no_memory(void)
{
	char want[256];

	backing = (struct engram_backing){.kind = ENGRAM_BACKING_MEMFD};
	inject_arm(&(struct inject_plan){.nth = 1, .calls = "fallocate"});
	CHECK(packed_life() == ENGRAM_ENOSPACE);
	CHECK(inject_disarm());
	snprintf(want, sizeof(want),
		 "create segment: engramd.%s.deepseek-v4.1-flash.14.g3.tmp: no "
		 "memory for 2097152 more bytes",
		 instance);
	CHECK_STR(err.message, want);
	CHECK(err.needed == 2097152 && !err.available);
	CHECK_STR(err.fix, "make the cgroup's memory limit larger, or free "
			   "some memory");
}

/* Huge pages that can not be had: done without, or an error. */
static void test_no_huge(void)
{
	const struct inject_plan none = {
		.nth = 1, .calls = "madvise_huge", .sticky = true};
	char want[256];

	backing = fixture_shm();
	inject_arm(&none);
	CHECK_OK(packed_life());
	CHECK(inject_disarm());
	backing.huge = ENGRAM_HUGE_OFF;
	inject_arm(&none);
	CHECK_OK(packed_life());
	CHECK(!inject_disarm());
	backing.huge = ENGRAM_HUGE_REQUIRE;
	inject_arm(&none);
	CHECK(packed_life() == ENGRAM_ENOSPACE);
	CHECK(inject_disarm());
	snprintf(want, sizeof(want),
		 "create segment: engramd.%s.deepseek-v4.1-flash.14.g3.tmp: no "
		 "huge pages for 2097152 more bytes",
		 instance);
	CHECK_STR(err.message, want);
	CHECK(strstr(err.fix, "memory.huge_pages"));
	CHECK(err.needed == 2097152 && err.sys_errno == ENOMEM);
	CHECK(!count_maps() && !count_names("/dev/shm", instance));
}

int main(void)
{
	size_t i;

	fixture_instance(instance, "segment-faults");
	for (i = 0; i < sizeof(lives) / sizeof(lives[0]); i++) {
		backing = fixture_shm();
		sweep(lives[i].what, lives[i].life, false);
		sweep(lives[i].what, lives[i].life, true);
		if (lives[i].life == list_and_remove ||
		    lives[i].life == adopt || lives[i].life == overwrite_life)
			continue; /* nothing of a memfd has a name */
		backing = (struct engram_backing){.kind = ENGRAM_BACKING_MEMFD};
		sweep(lives[i].what, lives[i].life, false);
		sweep(lives[i].what, lives[i].life, true);
	}
	test_no_proc();
	test_no_memory();
	test_no_huge();
	return 0;
}
