/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "launch.h"

enum engram_status cuda_enter(struct cuda_scope *scope, int device,
			      struct engram_error *err)
{
	enum engram_status status;

	scope->mode = cudaStreamCaptureModeRelaxed;
	status = engram_cuda_status(
		cudaThreadExchangeStreamCaptureMode(&scope->mode),
		"cudaThreadExchangeStreamCaptureMode", err);
	if (status)
		return status;
	status = engram_cuda_status(cudaGetDevice(&scope->device),
				    "cudaGetDevice", err);
	if (!status && device >= 0 && device != scope->device)
		status = engram_cuda_status(cudaSetDevice(device),
					    "cudaSetDevice", err);
	if (status)
		engram_cuda_ignore(
			cudaThreadExchangeStreamCaptureMode(&scope->mode));
	return status;
}

void cuda_leave(const struct cuda_scope *scope)
{
	enum cudaStreamCaptureMode mode = scope->mode;

	/* Both succeeded before; should they not now, the caller's own next
	 * call says so. */
	engram_cuda_ignore(cudaSetDevice(scope->device));
	engram_cuda_ignore(cudaThreadExchangeStreamCaptureMode(&mode));
}
