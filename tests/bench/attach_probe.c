/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that attaches when it is told to, for bench_attach.py:
 *
 *	attach_probe SOCKET TABLE [writable]
 *
 * reads commands, a line each, and answers with a line of JSON:
 *
 *	start		connect, start a CUDA context
 *	attach R N	rank R of N, until it is ready
 *	memory		what is free on the device
 *	detach
 *
 * and ends with its input.  Times are of the monotonic clock, in seconds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "engram_cuda.h"

struct probe {
	struct engram_open_params open;
	struct engram_attach_params attach;
	struct engram_cuda_attach_params cuda;
	engram_client *client;
	engram_cuda_table *table;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void engram(enum engram_status status, const char *what)
{
	const struct engram_error *err = engram_last_error();

	if (!status)
		return;
	fprintf(stderr, "attach_probe: %s: %s; %s\n", what, err->message,
		err->fix);
	exit(1);
}

static void cuda(cudaError_t code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "attach_probe: %s: %s\n", what,
		cudaGetErrorString(code));
	exit(1);
}

static size_t device_free(void)
{
	size_t available, total;

	cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
	return available;
}

static void start(struct probe *p)
{
	int driver, runtime;

	cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
	cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
	cuda(cudaFree(NULL), "starting a CUDA context");
	engram(engram_open(&p->open, &p->client), "connecting");
	printf("{\"driver_cuda\": %d, \"cuda\": %d, \"device_free\": %zu}\n",
	       driver, runtime, device_free());
}

static void attach(struct probe *p)
{
	size_t before = device_free();
	struct engram_cuda_info info;
	double begin = now(), attached, ready;

	engram(engram_cuda_attach(p->client, &p->attach, &p->cuda, &p->table),
	       "attaching");
	attached = now();
	engram(engram_cuda_wait(p->table, -1), "registering");
	ready = now();
	engram(engram_cuda_info(p->table, &info), "info");
	printf("{\"attach_seconds\": %.6f, \"ready_seconds\": %.6f, "
	       "\"register_seconds\": %.6f, \"registered_bytes\": %" PRIu64
	       ", \"chunks\": %" PRIu32 ", \"read_only\": %s, "
	       "\"handle_device_bytes\": %" PRIu64
	       ", \"device_free_before\": %zu, \"device_free\": %zu}\n",
	       attached - begin, ready - begin, info.register_seconds,
	       info.registered_bytes, info.chunks,
	       info.read_only ? "true" : "false", info.device_bytes, before,
	       device_free());
}

static void detach(struct probe *p)
{
	double begin = now();

	engram(engram_cuda_detach(p->table), "detaching");
	p->table = NULL;
	printf("{\"detach_seconds\": %.6f, \"device_free\": %zu}\n",
	       now() - begin, device_free());
}

static int obey(struct probe *p, const char *line)
{
	if (!strcmp(line, "start\n") && !p->client) {
		start(p);
	} else if (sscanf(line, "attach %" SCNu32 " %" SCNu32,
			  &p->attach.tp_rank, &p->attach.tp_size) == 2 &&
		   p->client && !p->table) {
		attach(p);
	} else if (!strcmp(line, "memory\n") && p->client) {
		printf("{\"device_free\": %zu}\n", device_free());
	} else if (!strcmp(line, "detach\n") && p->table) {
		detach(p);
	} else {
		fprintf(stderr, "attach_probe: not now: %s", line);
		return 0;
	}
	fflush(stdout);
	return 1;
}

int main(int argc, char **argv)
{
	struct probe p = {.cuda = {.device = -1}};
	char line[128];
	int ok = 1;

	if (argc < 3 || argc > 4 ||
	    (argc == 4 && strcmp(argv[3], "writable"))) {
		fputs("usage: attach_probe SOCKET TABLE [writable]\n", stderr);
		return 2;
	}
	p.open.socket = argv[1];
	p.attach.table = argv[2];
	p.cuda.force_writable = argc == 4;
	while (ok && fgets(line, sizeof(line), stdin))
		ok = obey(&p, line);
	engram_cuda_detach(p.table);
	engram_close(p.client);
	return !ok;
}
