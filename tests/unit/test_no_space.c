/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that somebody else takes between the steps of a segment's life: an
 * error with both figures, no signal, and nothing left behind. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "engram_control.h"
#include "segment_fixture.h"

#define SKIP 77

static struct engram_backing backing = {.kind = ENGRAM_BACKING_SHM,
					.huge = ENGRAM_HUGE_OFF};
static struct engram_error err;
static char dir[] = "/tmp/engram-no-space-XXXXXX";

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	const ssize_t len = (ssize_t)strlen(text);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == len);
	close(fd);
}

/* Without privileges: be root in a user namespace of our own. */
static int unshare_as_user(void)
{
	const uid_t uid = geteuid();
	const gid_t gid = getegid();
	char map[64];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return 0;
	snprintf(map, sizeof(map), "0 %u 1", uid);
	write_file("/proc/self/uid_map", map);
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1", gid);
	write_file("/proc/self/gid_map", map);
	return 1;
}

/* A tmpfs that only this process sees and that goes away with it. */
static int mount_private(void)
{
	if (unshare(CLONE_NEWNS) && !unshare_as_user()) {
		printf("skipped: no mount namespace: %s\n", strerror(errno));
		return 0;
	}
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", dir, "tmpfs", 0, "size=8m")) {
		printf("skipped: can not mount a tmpfs: %s\n", strerror(errno));
		return 0;
	}
	return 1;
}

static void resize(const char *size)
{
	CHECK(!mount("none", dir, "tmpfs", MS_REMOUNT, size));
}

static const char *filler(void)
{
	static char path[64];

	snprintf(path, sizeof(path), "%s/of-somebody-else", dir);
	return path;
}

/* Take all but `leave` bytes. */
static void fill(uint64_t leave)
{
	int fd = open(filler(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	uint64_t room;

	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(fd >= 0 && room > leave);
	CHECK(!fallocate(fd, 0, 0, (off_t)(room - leave)));
	close(fd);
	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room == leave);
}

static void release(void)
{
	CHECK(!unlink(filler()));
}

static void says(const char *message, uint64_t needed, uint64_t available)
{
	char fix[512];

	CHECK_STR(err.message, message);
	CHECK(err.status == ENGRAM_ENOSPACE && err.sys_errno == ENOSPC);
	CHECK(err.needed == needed && err.available == available);
	CHECK_STR(err.path, dir);
	snprintf(fix, sizeof(fix),
		 "make %s or the cgroup's memory limit larger, or remove "
		 "leftovers with `engramctl prune`",
		 dir);
	CHECK_STR(err.fix, fix);
}

static enum engram_status create(struct engram_segment_writer **w)
{
	struct engram_segment_spec spec = fixture_spec("full", ENGRAM_PACKED);

	return engram_segment_create(&backing, &spec, w, &err);
}

/* Not even the header's 2 MiB. */
static void test_create(void)
{
	struct engram_segment_writer *w;

	fill(1 << 20);
	CHECK(create(&w) == ENGRAM_ENOSPACE && !w);
	says("create segment: engramd.full.deepseek-v4.1-flash.14.g3.tmp: no "
	     "room for 2097152 more bytes, 1048576 are free",
	     2097152, 1048576);
	release();
	CHECK(count_names(dir, "engramd.") == 0);
}

static enum engram_status reserve(struct engram_segment_writer *w)
{
	const struct engram_segment_header *h = engram_segment_writer_header(w);

	return engram_segment_reserve(w, h->data_offset,
				      h->total_bytes - h->data_offset, &err);
}

static void test_reserve(void)
{
	struct engram_segment_writer *w;
	uint64_t before, after;

	CHECK_OK(engram_backing_room(&backing, &before, &err));
	CHECK_OK(create(&w));
	fill(4096);
	CHECK(reserve(w) == ENGRAM_ENOSPACE);
	says("engramd.full.deepseek-v4.1-flash.14.g3.tmp: no room for 2097152 "
	     "more bytes, 4096 are free",
	     2097152, 4096);
	/* Given up: its name and its memory are gone. */
	engram_segment_discard(w);
	CHECK(count_names(dir, "engramd.") == 0);
	release();
	CHECK_OK(engram_backing_room(&backing, &after, &err));
	CHECK(before == after);
	/* Tried again after others made room: whole.  Now with huge pages,
	 * for which a small one is touched before there is no room. */
	backing.huge = ENGRAM_HUGE_TRY;
	CHECK_OK(create(&w));
	fill(0);
	CHECK(reserve(w) == ENGRAM_ENOSPACE);
	CHECK(err.available == 0);
	release();
	CHECK_OK(reserve(w));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	engram_segment_discard(w);
	backing.huge = ENGRAM_HUGE_OFF;
}

/* The control page needs room too; what is left of the attempt is an empty
 * page, which the next one takes over. */
static void test_control(void)
{
	struct engram_control_owner *o;
	char want[256];

	fill(0);
	CHECK(engram_control_own(&backing, "full", &o, &err) ==
	      ENGRAM_ENOSPACE);
	snprintf(want, sizeof(want),
		 "control page %s/engramd.full.ctl: fallocate: No space left "
		 "on device",
		 dir);
	CHECK_STR(err.message, want);
	snprintf(want, sizeof(want), "make room in %s", dir);
	CHECK_STR(err.fix, want);
	CHECK(!o);
	/* To remove what is in the way takes none. */
	CHECK_OK(engram_control_claim(&backing, "full", &o, &err));
	engram_control_disown(o, 1);
	CHECK_OK(engram_control_claim(&backing, "full", &o, &err));
	engram_control_disown(o, 0);
	release();
	CHECK_OK(engram_control_own(&backing, "full", &o, &err));
	engram_control_disown(o, 1);
	CHECK(count_names(dir, "engramd.") == 0);
}

static void test_room(void)
{
	uint64_t room;

	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room == 8 << 20);
	resize("size=5m");
	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room == 5 << 20);
	resize("size=8m");
}

/* size=0 is a tmpfs without a limit, which statfs shows as no blocks; there
 * is no way back. */
static void test_unlimited(void)
{
	uint64_t room;

	resize("size=0");
	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room == UINT64_MAX);
}

int main(void)
{
	int fds = count_fds(), mounted;

	CHECK(mkdtemp(dir));
	snprintf(backing.dir, sizeof(backing.dir), "%s", dir);
	mounted = mount_private();
	if (mounted) {
		test_room();
		test_create();
		test_reserve();
		test_control();
		test_unlimited();
		CHECK(count_fds() == fds);
		CHECK(!umount(dir));
	}
	CHECK(!rmdir(dir));
	return mounted ? 0 : SKIP;
}
