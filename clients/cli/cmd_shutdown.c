/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "engram_wire.h"

/* engramd gives up on what still runs after a minute; then the kernel frees
 * the memory. */
#define WAIT_MS 120000

/* The process behind the socket, to be waited for; -1: it is not to be seen
 * from here. */
static int open_process(const struct cli *cli)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {0};
	socklen_t size = sizeof(peer);
	char room[128];
	const char *path = cli_socket(cli, room);
	int sock, fd = -1;

	if (strlen(path) >= sizeof(address.sun_path))
		return -1;
	memcpy(address.sun_path, path, strlen(path));
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	/* A pid of another PID namespace reads as 0. */
	if (!connect(sock, (struct sockaddr *)&address, sizeof(address)) &&
	    !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
	    peer.pid > 0)
		fd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	close(sock);
	return fd;
}

static enum cli_exit wait_for(struct cli *cli, int process)
{
	const int ms = cli->timeout_ms ? cli->timeout_ms : WAIT_MS;
	struct pollfd gone = {.fd = process, .events = POLLIN};
	struct engram_error err;
	int n;

	do
		n = poll(&gone, 1, ms);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		return CLI_OK;
	if (n < 0)
		engram_error_sys(&err, errno, "wait for engramd");
	else
		engram_error_set(&err, ENGRAM_ETIMEDOUT,
				 "engramd is still stopping");
	engram_error_fix(&err, "look into its log; a second SIGTERM stops it "
			       "at once");
	return cli_fail(cli, &err);
}

static enum cli_exit report(const struct cli *cli, bool stopped, bool keep)
{
	if (cli->json)
		return cli_print_json(json_pack("{s:b, s:b}", "stopped",
						(int)stopped, "keep",
						(int)keep));
	printf("engramd %s%s\n", stopped ? "has stopped" : "is stopping",
	       keep ? "; its tables are left to the next one" : "");
	return CLI_OK;
}

static enum cli_exit run_shutdown(struct cli *cli)
{
	const bool keep = cli_switch(cli, "--keep");
	enum cli_exit code = CLI_OK;
	json_t *params = NULL, *result;
	int process = -1;

	if (!cli_switch(cli, "--no-wait"))
		process = open_process(cli);
	if (keep)
		params = json_pack("{s:b}", "keep", 1);
	if (cli_call(cli, "shutdown", params, &result)) {
		code = cli_fail_last(cli);
	} else {
		json_decref(result);
		if (process >= 0)
			code = wait_for(cli, process);
		if (!code)
			code = report(cli, process >= 0, keep);
	}
	if (process >= 0)
		close(process);
	return code;
}

static const struct cli_option shutdown_options[] = {
	{"--keep", NULL, "leave the tables in memory to the next engramd"},
	{"--no-wait", NULL, "return as soon as it has begun to stop"},
	{0},
};

const struct cli_command cmd_shutdown = {
	.name = "shutdown",
	.usage = "[--keep] [--no-wait]",
	.summary = "stop engramd",
	.details =
		"\nReturns once its process has ended, if it is to be seen "
		"from here (not in another\nPID namespace). Clients keep what "
		"they have mapped. Without --keep the tables go;\nwith it the "
		"next engramd of the instance takes them over, as after a "
		"crash.",
	.options = shutdown_options,
	.run = run_shutdown,
};
