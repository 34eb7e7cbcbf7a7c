/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

static const char *fix_of(cudaError_t code)
{
	switch (code) {
	case cudaErrorNoDevice:
	case cudaErrorInsufficientDriver:
		return "check that nvidia-smi works here, and that the "
		       "driver is at least as new as this build's CUDA";
	case cudaErrorInvalidDevice:
		return "give an ordinal below cudaGetDeviceCount; devices are "
		       "counted within CUDA_VISIBLE_DEVICES";
	case cudaErrorDevicesUnavailable:
		return "end the process that holds the device for itself, or "
		       "set its compute mode to default (nvidia-smi -c 0)";
	case cudaErrorNoKernelImageForDevice:
		return "build with CUDA_ARCHS naming this GPU's compute "
		       "capability";
	case cudaErrorMemoryAllocation:
		return "free device memory, or give this process a larger "
		       "share of the GPU";
	case cudaErrorInvalidResourceHandle:
		return "make the stream's device the current one";
	default:
		return "see the CUDA runtime documentation for this error; "
		       "compute-sanitizer finds kernels that read out of "
		       "place";
	}
}

enum engram_status engram_cuda_status(cudaError_t code, const char *what,
				      struct engram_error *err)
{
	if (code == cudaSuccess)
		return ENGRAM_OK;
	cudaGetLastError();
	engram_error_set(err, ENGRAM_ECUDA, "%s: %s: %s", what,
			 cudaGetErrorName(code), cudaGetErrorString(code));
	engram_error_fix(err, "%s", fix_of(code));
	return ENGRAM_ECUDA;
}

void engram_cuda_ignore(cudaError_t code)
{
	if (code != cudaSuccess)
		cudaGetLastError();
}

enum engram_status engram_cuda_launched(const char *kernel,
					struct engram_error *err)
{
	return engram_cuda_status(cudaGetLastError(), kernel, err);
}

enum engram_status engram_cuda_multiprocessors(int *out,
					       struct engram_error *err)
{
	int device;
	cudaError_t code = cudaGetDevice(&device);

	if (!code)
		code = cudaDeviceGetAttribute(
			out, cudaDevAttrMultiProcessorCount, device);
	return engram_cuda_status(code, "current device", err);
}
