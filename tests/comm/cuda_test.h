/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests on a GPU share. */
#ifndef TEST_CUDA_TEST_H
#define TEST_CUDA_TEST_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "loopback.h"

/* Ends the program with the call and its error. */
#define CUDA(call) cuda_check((call), #call, __FILE__, __LINE__)
void cuda_check(cudaError_t code, const char *call, const char *file, int line);
/* Likewise for a function of ours. */
#define OK(call, err) engram_check((call), (err), #call, __FILE__, __LINE__)
void engram_check(enum engram_status status, const struct engram_error *err,
		  const char *call, const char *file, int line);

/* Exits with 77 when there is no device. */
void cuda_need_device(void);

/* Device memory: raw, or a copy of what is at `from`.  At least a byte. */
void *cuda_room(size_t bytes);
void *cuda_copy(const void *from, size_t bytes);
/* Host memory with what is at `from` on the device. */
void *cuda_fetch(const void *from, size_t bytes);

/* The loop-back for device memory: ranks are threads that share the current
 * device, and wait for each other's streams by events. */
struct loopback_cuda {
	struct loopback_ops ops;
	uint32_t size;
	cudaEvent_t ready[LOOPBACK_MAX], done[LOOPBACK_MAX];
};
void loopback_cuda_open(struct loopback_cuda *lo, uint32_t size);
void loopback_cuda_close(struct loopback_cuda *lo);

#endif
