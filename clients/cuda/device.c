/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <ctype.h>
#include <stdio.h>

#include "engram_segment.h"
#include "launch.h"

/*
 * A device is made current only if it is not: the runtime starts a context,
 * hundreds of MiB, on any device that cudaSetDevice names, and on the current
 * one, device 0 in a new thread, with the first call that needs one.  So this
 * comes before all other calls.
 */
static enum engram_status move_to(struct cuda_scope *scope, int device,
				  struct engram_error *err)
{
	enum engram_status status = engram_cuda_status(
		cudaGetDevice(&scope->device), "cudaGetDevice", err);

	scope->moved = 0;
	if (status || device < 0 || device == scope->device)
		return status;
	status =
		engram_cuda_status(cudaSetDevice(device), "cudaSetDevice", err);
	scope->moved = !status;
	return status;
}

static void move_back(const struct cuda_scope *scope)
{
	/* It was current before; should it not be now, the caller's own next
	 * call says so. */
	if (scope->moved)
		engram_cuda_ignore(cudaSetDevice(scope->device));
}

enum engram_status cuda_enter(struct cuda_scope *scope, int device,
			      struct engram_error *err)
{
	enum engram_status status = move_to(scope, device, err);

	if (status)
		return status;
	scope->mode = cudaStreamCaptureModeRelaxed;
	status = engram_cuda_status(
		cudaThreadExchangeStreamCaptureMode(&scope->mode),
		"cudaThreadExchangeStreamCaptureMode", err);
	if (status)
		move_back(scope);
	return status;
}

void cuda_leave(const struct cuda_scope *scope)
{
	enum cudaStreamCaptureMode mode = scope->mode;

	engram_cuda_ignore(cudaThreadExchangeStreamCaptureMode(&mode));
	move_back(scope);
}

int cuda_device_node(int device)
{
	char bus_id[64], path[128];
	cudaError_t code;
	int node = -1;
	FILE *f;

	/* Where it can not be told, the sidecar chooses. */
	code = cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device);
	engram_cuda_ignore(code);
	if (code)
		return -1;
	for (char *at = bus_id; *at; at++)
		*at = (char)tolower((unsigned char)*at);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node",
		 bus_id);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1 || node < 0 || node >= ENGRAM_NODES)
		node = -1;
	fclose(f);
	return node;
}
