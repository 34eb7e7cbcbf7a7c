/* SPDX-License-Identifier: Apache-2.0 */
/* What every launch of the CUDA backend needs. */
#ifndef ENGRAM_CUDA_LAUNCH_H
#define ENGRAM_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "engram_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ENGRAM_OK for cudaSuccess; else ENGRAM_ECUDA, "what: name: text", with the
 * error consumed, so that it does not come up again in a call that has nothing
 * to do with it. */
enum engram_status engram_cuda_status(cudaError_t code, const char *what,
				      struct engram_error *err);

/* For what is done on the way out, where a failure changes nothing (a lost
 * context has let go of all it had): the error is consumed. */
void engram_cuda_ignore(cudaError_t code);

/* Of the launch just made. */
enum engram_status engram_cuda_launched(const char *kernel,
					struct engram_error *err);

/* Multiprocessors of the current device. */
enum engram_status engram_cuda_multiprocessors(int *out,
					       struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
