/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make a device current for some calls, and let them be while other streams
 * of the process are being captured: in the default mode of a capture,
 * cudaMalloc or cudaHostRegister of any thread would spoil it.
 */
#ifndef ENGRAM_CUDA_DEVICE_H
#define ENGRAM_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "engram_error.h"

struct cuda_scope {
	int device; /* of before */
	int moved;  /* to another */
	enum cudaStreamCaptureMode mode;
};

/* device -1: stay on the current one.  Leave a scope that was entered. */
enum engram_status cuda_enter(struct cuda_scope *scope, int device,
			      struct engram_error *err);
void cuda_leave(const struct cuda_scope *scope);

/* The node of memory that the device is at, or -1 where that is not known. */
int cuda_device_node(int device);

#endif
