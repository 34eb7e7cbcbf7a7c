/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engram_wire.h"

void engram_wire_default_socket(char out[108], const char *instance)
{
	const char *socket = secure_getenv("ENGRAMD_SOCKET");

	if (socket && *socket && strlen(socket) < 108)
		snprintf(out, 108, "%s", socket);
	else
		snprintf(out, 108, "/run/engramd/%.63s.sock", instance);
}

/* Room for ENGRAM_FDS_MAX descriptors, aligned as cmsghdr wants it. */
union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int) * ENGRAM_FDS_MAX)];
};

ssize_t engram_wire_send(int sock, const void *data, size_t len, const int *fds,
			 size_t nfds)
{
	union control control;
	struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (nfds > ENGRAM_FDS_MAX)
		return -EINVAL;
	if (nfds) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
	}
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Append the descriptors of a message to fds; close what does not fit, and,
 * with `drop`, all of them. */
static void take_fds(struct msghdr *msg, int *fds, size_t *nfds, size_t max_fds,
		     bool drop)
{
	struct cmsghdr *cmsg;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t count, i;

		if (cmsg->cmsg_level != SOL_SOCKET ||
		    cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int),
			       sizeof(fd));
			if (drop || *nfds >= max_fds)
				close(fd);
			else
				fds[(*nfds)++] = fd;
		}
	}
}

ssize_t engram_wire_recv(int sock, void *data, size_t len, int *fds,
			 size_t *nfds, size_t max_fds)
{
	union control control;
	struct iovec iov = {.iov_base = data, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.bytes,
			     .msg_controllen = sizeof(control.bytes)};
	bool cut;
	ssize_t n;

	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	cut = msg.msg_flags & MSG_CTRUNC;
	take_fds(&msg, fds, nfds, max_fds, cut);
	return cut ? -EMSGSIZE : n;
}

unsigned int engram_wire_json_depth(const char *text, size_t len)
{
	unsigned int depth = 0, deepest = 0;
	bool in_string = false;

	for (size_t i = 0; i < len && deepest <= ENGRAM_DEPTH_MAX; i++) {
		const char c = text[i];

		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > deepest)
				deepest = depth;
		} else if ((c == '}' || c == ']') && depth) {
			depth--;
		}
	}
	return deepest;
}
