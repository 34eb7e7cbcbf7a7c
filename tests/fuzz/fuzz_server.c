/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes to a sidecar, in small pieces; after each input another
 * connection must get its ping answered.  The sidecar runs in a thread.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config.h"
#include "log.h"
#include "server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/engram-fuzz-XXXXXX";
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static pthread_t thread;

static void *serve(void *config)
{
	server_run("/dev/null", config);
	return NULL;
}

static int connected(void)
{
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (sock < 0)
		abort();
	if (!connect(sock, (struct sockaddr *)&address, sizeof(address)))
		return sock;
	close(sock);
	return -1;
}

/* Send what can be sent, then read until the sidecar has closed too. */
static size_t talk(const uint8_t *data, size_t size, char *out, size_t room)
{
	const int sock = connected();
	size_t got = 0, piece = 1;
	char waste[4096];
	ssize_t n;

	if (sock < 0)
		abort();
	while (size) {
		piece = piece * 7 % 64 + 1;
		n = send(sock, data, piece < size ? piece : size, MSG_NOSIGNAL);
		if (n <= 0)
			break;
		data += n;
		size -= (size_t)n;
	}
	shutdown(sock, SHUT_WR);
	while ((n = recv(sock, got < room ? out + got : waste,
			 got < room ? room - got : sizeof(waste), 0)) > 0)
		if (got < room)
			got += (size_t)n;
	close(sock);
	return got;
}

static void stop(void)
{
	static const char line[] =
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"shutdown\"}\n";

	talk((const uint8_t *)line, sizeof(line) - 1, NULL, 0);
	pthread_join(thread, NULL);
	rmdir(dir);
}

static void start(void)
{
	struct engram_error err = {0};
	struct config *config;
	char text[512];
	int sock;

	if (!mkdtemp(dir))
		abort();
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", dir);
	snprintf(text, sizeof(text),
		 "{\"instance\": \"fuzz-%d\", \"socket\": {\"path\": \"%s\"}, "
		 "\"memory\": {\"backing\": \"memfd\"}, "
		 "\"log\": {\"level\": \"error\"}, \"tables\": [{\"name\": "
		 "\"demo\", \"checkpoint\": \"/nonexistent\", \"load\": "
		 "\"on_demand\"}]}",
		 (int)getpid(), address.sun_path);
	if (config_parse("fuzz", text, strlen(text), &config, &err)) {
		fprintf(stderr, "%s\n", err.message);
		abort();
	}
	log_set_level(LOG_ERROR);
	if (pthread_create(&thread, NULL, serve, config))
		abort();
	while ((sock = connected()) < 0)
		usleep(1000);
	close(sock);
	atexit(stop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char ping[] =
		"{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":\"ping\"}\n";
	char answer[2048];
	size_t n;

	if (!address.sun_path[0])
		start();
	/* A sidecar that was asked to stop may do so. */
	if (memmem(data, size, "shutdown", 8) || memmem(data, size, "\\u", 2))
		return 0;
	talk(data, size, NULL, 0);
	n = talk((const uint8_t *)ping, sizeof(ping) - 1, answer,
		 sizeof(answer) - 1);
	answer[n] = '\0';
	if (!strstr(answer, "\"id\":77"))
		abort();
	return 0;
}
