/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes from a sidecar, in small pieces, behind a proper greeting:
 * libengram returns from every call, with a status. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engram.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char greeting[] =
	"{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{\"product\":"
	"\"engramd\",\"version\":\"0\",\"protocol\":{\"major\":1,\"minor\":0},"
	"\"capabilities\":[\"attach\"],\"instance\":\"fuzz\",\"boot_epoch\":"
	"\"0123456789abcdef\",\"pid\":1,\"limits\":{\"line_bytes\":1048576,"
	"\"depth\":32,\"fds\":128,\"connections\":9}}}\n";

static char dir[] = "/tmp/engram-fuzz-XXXXXX";
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int listener = -1;

struct input {
	const uint8_t *data;
	size_t size;
};

/* Play the sidecar for one connection; there is none for a client that connects
 * anew. */
static void *play(void *arg)
{
	const struct input *input = arg;
	const int sock = accept(listener, NULL, NULL);
	size_t at = 0, piece = 1;
	char waste[4096];

	if (sock < 0)
		abort();
	unlink(address.sun_path);
	close(listener);
	/* A client that has had enough closes: not an error here. */
	if (send(sock, greeting, sizeof(greeting) - 1, MSG_NOSIGNAL) > 0)
		while (at < input->size) {
			ssize_t n;

			piece = piece * 7 % 64 + 1;
			n = send(sock, input->data + at,
				 piece < input->size - at ? piece
							  : input->size - at,
				 MSG_NOSIGNAL);
			if (n <= 0)
				break;
			at += (size_t)n;
		}
	shutdown(sock, SHUT_WR);
	while (recv(sock, waste, sizeof(waste), 0) > 0)
		;
	close(sock);
	return NULL;
}

static void finish(void)
{
	rmdir(dir);
}

static void start(void)
{
	if (!address.sun_path[0]) {
		if (!mkdtemp(dir))
			abort();
		snprintf(address.sun_path, sizeof(address.sun_path), "%s/s",
			 dir);
		atexit(finish);
	}
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(listener, 4))
		abort();
}

static void use(engram_client *client)
{
	engram_table *table;
	char *text;

	if (!engram_call(client, "ping", NULL, &text))
		engram_free(text);
	if (!engram_next_event(client, 0, &text))
		engram_free(text);
	if (!engram_attach(client,
			   &(struct engram_attach_params){.table = "demo"},
			   &table))
		abort(); /* no descriptors came: nothing can be attached */
	if (!engram_last_error()->message[0])
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {.data = data, .size = size};
	engram_client *client;
	pthread_t thread;

	start();
	if (pthread_create(&thread, NULL, play, &input))
		abort();
	if (!engram_open(
		    &(struct engram_open_params){.socket = address.sun_path},
		    &client)) {
		use(client);
		engram_close(client);
	}
	pthread_join(thread, NULL);
	return 0;
}
