/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a backing: each is made from one set of parts and back again. */
#include <fcntl.h>
#include <sys/stat.h>

#include "segment.h"
#include "segment_fixture.h"

#define A16 "aaaaaaaaaaaaaaaa"
#define A63 A16 A16 A16 "aaaaaaaaaaaaaaa"

static void test_valid(void)
{
	static const char *const good[] = {"a",	 "A-_9", "-",	   "_",
					   "g1", "tmp",	 "ctl",	   A63,
					   "0",	 "-1",	 "engramd"};
	static const char *const dotted[] = {"deepseek-v4.1-flash", "a.b.c",
					     "a.1.g2", "x.tmp", "x.ctl"};
	static const char *const bad[] = {
		"",    ".",   "..",  ".a",   "a.",	 "a..b",  "a/b",
		"a b", "a\n", "a%s", "a\\b", "\xc3\xa9", A63 "a", "a:b"};
	size_t i;

	for (i = 0; i < sizeof(good) / sizeof(*good); i++)
		CHECK(engram_name_valid(good[i]) &&
		      engram_instance_valid(good[i]));
	for (i = 0; i < sizeof(dotted) / sizeof(*dotted); i++)
		CHECK(engram_name_valid(dotted[i]) &&
		      !engram_instance_valid(dotted[i]));
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		CHECK(!engram_name_valid(bad[i]) &&
		      !engram_instance_valid(bad[i]));
}

static void round_trip(const char *instance, const char *table, int32_t layer,
		       uint64_t generation, uint32_t replica)
{
	char name[256], temporary[512];
	struct engram_segment_entry e;

	engram_segment_copy_name(name, instance, table, layer, generation,
				 replica);
	CHECK(segment_name_parse(name, &e));
	CHECK_STR(e.name, name);
	CHECK_STR(e.instance, instance);
	CHECK_STR(e.table, table);
	CHECK(e.layer_id == layer);
	CHECK(e.generation == generation);
	CHECK(e.replica == replica);
	CHECK(!e.temporary && !e.control);
	snprintf(temporary, sizeof(temporary), "%s.tmp", name);
	CHECK(segment_name_parse(temporary, &e));
	CHECK_STR(e.table, table);
	CHECK(e.generation == generation);
	CHECK(e.replica == replica);
	CHECK(e.temporary && !e.control);
}

/* Tables that look like the parts around them are still told apart. */
static void test_round_trip(void)
{
	static const char *const instances[] = {"a", "ctl", "g1", A63};
	static const char *const tables[] = {
		"a",	  "1",	  "g1",
		"a.1.g2", "1.g1", "x.tmp",
		"tmp",	  "ctl",  "deepseek-v4.1-flash",
		"a.n1",	  A63};
	static const int32_t layers[] = {0, 1, 14, INT32_MAX};
	static const uint64_t generations[] = {1, 9, 10,
					       UINT64_C(9999999999999999999)};
	static const uint32_t replicas[] = {0, 1, 2, ENGRAM_NODES};
	size_t i, t, l, g, r;

	for (i = 0; i < 4; i++)
		for (t = 0; t < sizeof(tables) / sizeof(*tables); t++)
			for (l = 0; l < 4; l++)
				for (g = 0; g < 4; g++)
					for (r = 0; r < 4; r++)
						round_trip(instances[i],
							   tables[t], layers[l],
							   generations[g],
							   replicas[r]);
}

static void test_control_name(void)
{
	struct engram_segment_entry e;
	char name[256];

	control_page_name(name, "node-1");
	CHECK_STR(name, "engramd.node-1.ctl");
	CHECK(segment_name_parse(name, &e) && e.control && !e.temporary);
	CHECK_STR(e.instance, "node-1");
	CHECK_STR(e.table, "");
}

static void test_hostile(void)
{
	static const char *const names[] = {
		"",
		"engramd",
		"engramd.",
		"engramd..",
		"engramd.a",
		"engramd.a.",
		"engramd..ctl",
		"engramd.a.ctl.tmp",
		"engramd.a.ctl.",
		"engramd.a.b",
		"engramd.a.b.1",
		"engramd.a.b.1.g",
		"engramd.a.b.1.g1x",
		"engramd.a.b.1.1",
		"engramd.a.b..g1",
		"engramd.a..1.g1",
		"engramd.a.1.g1",
		"engramd.a.b.-1.g1",
		"engramd.a.b.01.g1",
		"engramd.a.b.1.g01",
		"engramd.a.b.1.g-1",
		"engramd.a.b.1.g+1",
		"engramd.a.b.1.g 1",
		"engramd.a.b.2147483648.g1",
		"engramd.a.b.1.g99999999999999999999",
		"engramd.a.b.1.g18446744073709551616",
		"engramd.a.b.1.g1.tmp.tmp",
		"engramd.a.b.1.g1tmp",
		"engramd.a.b/../c.1.g1",
		"engramd.a/b.c.1.g1",
		"engramd.a.b..c.1.g1",
		"engramd.a..b.1.g1",
		"ENGRAMD.a.b.1.g1",
		"xengramd.a.b.1.g1",
		"engramd.a.b.1.g1\n",
		"/engramd.a.b.1.g1",
		"engramd.a.b.1.g0x1",
		"engramd." A63 "a.b.1.g1",
		"engramd.a." A63 "a.1.g1",
		"engramd.a.b.1.g1.",
		"engramd.a.b.1.g1.n",
		"engramd.a.b.1.g1.n64",
		"engramd.a.b.1.g1.n01",
		"engramd.a.b.1.g1.n-1",
		"engramd.a.b.1.g1.n1.n1",
		"engramd.a.b.1.n1",
		".tmp",
		"engramd.tmp",
		"engramd.a.tmp",
		"engramd..tmp"};
	struct engram_segment_entry e;
	char longer[4096];
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (segment_name_parse(names[i], &e)) {
			fprintf(stderr, "\"%s\" parses\n", names[i]);
			exit(1);
		}
	memset(longer, '1', sizeof(longer));
	memcpy(longer, "engramd.a.b.1.g", 15);
	longer[sizeof(longer) - 1] = '\0';
	CHECK(!segment_name_parse(longer, &e));
}

/* Only regular files of the right name are listed, and only names that a
 * listing could show are opened or removed. */
static void test_folder(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_SHM};
	static const char *const files[] = {
		"engramd.a.t.1.g1", "engramd.a.t.1.g2.tmp", "engramd.a.ctl",
		"engramd.b.t.1.g1", "other"};
	struct engram_segment_entry *list;
	struct engram_error err;
	char path[512], dir[] = "/tmp/engram-names-XXXXXX";
	size_t count, i;
	int fd;

	CHECK(mkdtemp(dir));
	snprintf(backing.dir, sizeof(backing.dir), "%s", dir);
	for (i = 0; i < 5; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
		fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && write(fd, "x", 1) == 1);
		close(fd);
	}
	snprintf(path, sizeof(path), "%s/engramd.a.link.1.g1", dir);
	CHECK(!symlink("other", path));
	snprintf(path, sizeof(path), "%s/engramd.a.folder.1.g1", dir);
	CHECK(!mkdir(path, 0700));

	CHECK_OK(engram_segment_list(&backing, "a", &list, &count, &err));
	CHECK(count == 3);
	for (i = 0; i < count; i++) {
		CHECK_STR(list[i].instance, "a");
		CHECK(list[i].bytes % 512 == 0);
	}
	free(list);
	CHECK_OK(engram_segment_list(&backing, NULL, &list, &count, &err));
	CHECK(count == 4);
	free(list);

	CHECK(engram_segment_open(&backing, "engramd.a.link.1.g1", &fd, &err) ==
	      ENGRAM_ESYS);
	CHECK(engram_segment_open(&backing, "engramd.a.t.1.g2.tmp", &fd,
				  &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message,
		  "\"engramd.a.t.1.g2.tmp\" is not the name of a segment");
	CHECK(engram_segment_open(&backing, "engramd.a.ctl", &fd, &err) ==
	      ENGRAM_EINVAL);
	CHECK(engram_segment_open(&backing, "engramd.a.t.9.g1", &fd, &err) ==
	      ENGRAM_ENOTFOUND);
	CHECK_STR(err.fix, "ask the sidecar which generation is current");
	CHECK(engram_segment_remove(&backing, "other", &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message, "\"other\" is not a name of engramd's");
	CHECK(engram_segment_remove(&backing, "../engramd.a.t.1.g1", &err) ==
	      ENGRAM_EINVAL);
	CHECK(engram_segment_remove(&backing, "engramd.a.folder.1.g1", &err));
	CHECK_STR(err.fix, "run as the user who owns it");
	for (i = 0; i < 4; i++) {
		CHECK_OK(engram_segment_remove(&backing, files[i], &err));
		CHECK_OK(engram_segment_remove(&backing, files[i], &err));
	}
	CHECK_OK(engram_segment_remove(&backing, "engramd.a.link.1.g1", &err));
	CHECK(!rmdir(path));
	snprintf(path, sizeof(path), "%s/other", dir);
	CHECK(!unlink(path) && !rmdir(dir));

	CHECK(engram_segment_list(&backing, NULL, &list, &count, &err) ==
	      ENGRAM_ENOTFOUND);
	CHECK(!list && !count);
	CHECK_STR(err.fix, "check that it is mounted and readable");
	backing.kind = ENGRAM_BACKING_MEMFD;
	CHECK_OK(engram_segment_list(&backing, NULL, &list, &count, &err));
	CHECK(!list && !count);
	CHECK(engram_segment_open(&backing, "engramd.a.t.1.g1", &fd, &err) ==
	      ENGRAM_EUNSUPPORTED);
}

int main(void)
{
	int fds = count_fds();

	test_valid();
	test_round_trip();
	test_control_name();
	test_hostile();
	test_folder();
	CHECK(count_fds() == fds);
	return 0;
}
