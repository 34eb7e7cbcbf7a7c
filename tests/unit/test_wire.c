/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over a socket, and the nesting of JSON text. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "engram_wire.h"
#include "segment_fixture.h"

static int pair[2];

static int is_file(int fd, const char *text)
{
	char got[32] = "";

	return pread(fd, got, sizeof(got) - 1, 0) >= 0 && !strcmp(got, text);
}

static int file_of(const char *text)
{
	int fd = memfd_create("wire", MFD_CLOEXEC);
	const ssize_t len = (ssize_t)strlen(text);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == len);
	return fd;
}

static void close_all(const int *fds, size_t n)
{
	while (n)
		CHECK(!close(fds[--n]));
}

/* They arrive in order, CLOEXEC, with the first of the bytes. */
static void test_passed(void)
{
	int sent[2] = {file_of("one"), file_of("two")}, got[4];
	char data[16];
	size_t n = 1;

	got[0] = -7;
	CHECK(engram_wire_send(pair[0], "abcdef", 6, sent, 2) == 6);
	CHECK(engram_wire_recv(pair[1], data, 4, got, &n, 4) == 4);
	CHECK(!memcmp(data, "abcd", 4) && n == 3 && got[0] == -7);
	CHECK(is_file(got[1], "one") && is_file(got[2], "two"));
	CHECK(fcntl(got[1], F_GETFD) == FD_CLOEXEC);
	CHECK(fcntl(got[2], F_GETFD) == FD_CLOEXEC);
	close_all(got + 1, 2);
	CHECK(engram_wire_recv(pair[1], data, 16, got, &n, 4) == 2 && n == 3);
	CHECK(engram_wire_recv(pair[1], data, 16, got, &n, 4) == -EAGAIN);
	close_all(sent, 2);
}

static void test_most(void)
{
	int sent[ENGRAM_FDS_MAX + 1], got[ENGRAM_FDS_MAX], fd = file_of("x");
	char data[4];
	size_t n = 0, i;

	for (i = 0; i < ENGRAM_FDS_MAX + 1; i++)
		sent[i] = fd;
	CHECK(engram_wire_send(pair[0], "x", 1, sent, ENGRAM_FDS_MAX + 1) ==
	      -EINVAL);
	CHECK(engram_wire_send(pair[0], "x", 1, sent, ENGRAM_FDS_MAX) == 1);
	CHECK(engram_wire_recv(pair[1], data, 4, got, &n, ENGRAM_FDS_MAX) == 1);
	CHECK(n == ENGRAM_FDS_MAX);
	for (i = 0; i < n; i++)
		CHECK(is_file(got[i], "x"));
	close_all(got, n);
	close(fd);
}

/* What the caller has no room for is closed, not leaked. */
static void test_extras(void)
{
	int sent[3] = {file_of("one"), file_of("two"), file_of("three")};
	int fds = count_fds(), got[3];
	char data[4];
	size_t n = 1;

	CHECK(engram_wire_send(pair[0], "x", 1, sent, 3) == 1);
	CHECK(engram_wire_recv(pair[1], data, 4, got, &n, 2) == 1);
	CHECK(n == 2 && is_file(got[1], "one"));
	close(got[1]);
	CHECK(engram_wire_send(pair[0], "x", 1, sent, 3) == 1);
	n = 0;
	CHECK(engram_wire_recv(pair[1], data, 4, NULL, &n, 0) == 1 && !n);
	CHECK(count_fds() == fds);
	close_all(sent, 3);
}

/* One descriptor below RLIMIT_NOFILE: the kernel drops some. */
static void test_cut(void)
{
	int sent[3] = {file_of("one"), file_of("two"), file_of("three")};
	int fds = count_fds(), next = dup(pair[0]), got[3];
	struct rlimit was, low;
	char data[4];
	size_t n = 0;

	CHECK(next >= 0 && !close(next));
	CHECK(engram_wire_send(pair[0], "x", 1, sent, 3) == 1);
	CHECK(engram_wire_send(pair[0], "y", 1, NULL, 0) == 1);
	CHECK(!getrlimit(RLIMIT_NOFILE, &was));
	low = was;
	low.rlim_cur = (rlim_t)next + 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	CHECK(engram_wire_recv(pair[1], data, 4, got, &n, 3) == -EMSGSIZE);
	CHECK(!setrlimit(RLIMIT_NOFILE, &was));
	CHECK(!n && count_fds() == fds);
	/* The stream goes on behind it. */
	CHECK(engram_wire_recv(pair[1], data, 4, got, &n, 3) == 1);
	CHECK(data[0] == 'y' && !n);
	close_all(sent, 3);
}

static void test_end(void)
{
	char data[4];
	size_t n = 0;
	int got[1], ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	CHECK(!close(ends[0]));
	CHECK(engram_wire_recv(ends[1], data, 4, got, &n, 1) == 0);
	/* No SIGPIPE. */
	CHECK(engram_wire_send(ends[1], "x", 1, NULL, 0) == -EPIPE);
	CHECK(!close(ends[1]));
	CHECK(engram_wire_send(-1, "x", 1, NULL, 0) == -EBADF);
	CHECK(engram_wire_recv(-1, data, 4, got, &n, 1) == -EBADF);
}

static void test_full(void)
{
	char data[4096] = {0};
	int ends[2];
	ssize_t n;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	do
		n = engram_wire_send(ends[0], data, sizeof(data), NULL, 0);
	while (n > 0);
	CHECK(n == -EAGAIN);
	close_all(ends, 2);
}

static void test_depth(void)
{
	static const struct {
		const char *text;
		unsigned int depth;
	} cases[] = {
		{"", 0},
		{"1", 0},
		{"[]", 1},
		{"{\"a\":[{}]}", 3},
		{"[[]][[[]]]", 3},
		{"[\"[[[[\"]", 1},
		{"[\"\\\"[[[[\"]", 1},
		{"[\"\\\\\",[]]", 2},
		{"[\"\\\\\\\"[[\"]", 1},
		{"\"[", 0},
		{"\"\\", 0},
		{"]]]]]]", 0},
		{"]][", 1},
		{"{[}]", 2},
	};
	char deep[100];
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		CHECK(engram_wire_json_depth(cases[i].text,
					     strlen(cases[i].text)) ==
		      cases[i].depth);
	memset(deep, '[', sizeof(deep));
	CHECK(engram_wire_json_depth(deep, ENGRAM_DEPTH_MAX) ==
	      ENGRAM_DEPTH_MAX);
	CHECK(engram_wire_json_depth(deep, sizeof(deep)) ==
	      ENGRAM_DEPTH_MAX + 1);
	/* An escape at the very end of the text. */
	CHECK(engram_wire_json_depth("\"\\\"", 2) == 0);
}

static void test_default_socket(void)
{
	char out[108], path[109];

	unsetenv("ENGRAMD_SOCKET");
	engram_wire_default_socket(out, "node-1");
	CHECK_STR(out, "/run/engramd/node-1.sock");
	setenv("ENGRAMD_SOCKET", "/tmp/s", 1);
	engram_wire_default_socket(out, "node-1");
	CHECK_STR(out, "/tmp/s");
	setenv("ENGRAMD_SOCKET", "", 1);
	engram_wire_default_socket(out, "node-1");
	CHECK_STR(out, "/run/engramd/node-1.sock");
	/* 107 bytes are the most that a socket's path has. */
	memset(path, 'a', sizeof(path));
	path[107] = '\0';
	setenv("ENGRAMD_SOCKET", path, 1);
	engram_wire_default_socket(out, "node-1");
	CHECK_STR(out, path);
	path[107] = 'a';
	path[108] = '\0';
	setenv("ENGRAMD_SOCKET", path, 1);
	engram_wire_default_socket(out, "node-1");
	CHECK_STR(out, "/run/engramd/node-1.sock");
	unsetenv("ENGRAMD_SOCKET");
}

int main(void)
{
	int fds = count_fds();

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	test_passed();
	test_most();
	test_extras();
	test_cut();
	test_end();
	test_full();
	test_depth();
	test_default_socket();
	close_all(pair, 2);
	CHECK(count_fds() == fds);
	return 0;
}
