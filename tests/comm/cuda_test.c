/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_test.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/launch.h"

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
	if (!code)
		return;
	fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call,
		cudaGetErrorName(code), cudaGetErrorString(code));
	exit(1);
}

void engram_check(enum engram_status status, const struct engram_error *err,
		  const char *call, const char *file, int line)
{
	if (!status)
		return;
	fprintf(stderr, "%s:%d: %s: %s: %s (%s)\n", file, line, call,
		engram_status_symbol(status), err->message, err->fix);
	exit(1);
}

void cuda_need_device(void)
{
	int count = 0;
	cudaError_t code = cudaGetDeviceCount(&count);

	if (!code && count)
		return;
	printf("skipped: no CUDA device: %s\n", cudaGetErrorString(code));
	exit(77);
}

void *cuda_room(size_t bytes)
{
	void *p;

	CUDA(cudaMalloc(&p, bytes + 1));
	return p;
}

void *cuda_copy(const void *from, size_t bytes)
{
	void *p = cuda_room(bytes);

	CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
	return p;
}

void *cuda_fetch(const void *from, size_t bytes)
{
	void *p = malloc(bytes + 1);

	if (!p)
		abort();
	CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
	return p;
}

static enum engram_status ready(void *context, uint32_t rank,
				engram_stream stream, struct engram_error *err)
{
	struct loopback_cuda *lo = context;

	return engram_cuda_status(cudaEventRecord(lo->ready[rank], stream),
				  "recording what is sent", err);
}

static enum engram_status copy(void *context, uint32_t from, void *to,
			       const void *what, size_t bytes,
			       engram_stream stream, struct engram_error *err)
{
	struct loopback_cuda *lo = context;
	cudaError_t code = cudaStreamWaitEvent(stream, lo->ready[from], 0);

	if (!code)
		code = cudaMemcpyAsync(to, what, bytes,
				       cudaMemcpyDeviceToDevice, stream);
	return engram_cuda_status(code, "copying what was sent", err);
}

static enum engram_status done(void *context, uint32_t rank,
			       engram_stream stream, struct engram_error *err)
{
	struct loopback_cuda *lo = context;

	return engram_cuda_status(cudaEventRecord(lo->done[rank], stream),
				  "recording what was read", err);
}

/* What this rank sent may be overwritten when all have it. */
static enum engram_status settle(void *context, engram_stream stream,
				 struct engram_error *err)
{
	struct loopback_cuda *lo = context;
	cudaError_t code = cudaSuccess;

	for (uint32_t i = 0; !code && i < lo->size; i++)
		code = cudaStreamWaitEvent(stream, lo->done[i], 0);
	return engram_cuda_status(code, "waiting for the other ranks", err);
}

void loopback_cuda_open(struct loopback_cuda *lo, uint32_t size)
{
	*lo = (struct loopback_cuda){
		.ops = {.ready = ready,
			.copy = copy,
			.done = done,
			.settle = settle,
			.context = lo},
		.size = size,
	};
	for (uint32_t i = 0; i < size; i++) {
		CUDA(cudaEventCreateWithFlags(&lo->ready[i],
					      cudaEventDisableTiming));
		CUDA(cudaEventCreateWithFlags(&lo->done[i],
					      cudaEventDisableTiming));
	}
}

void loopback_cuda_close(struct loopback_cuda *lo)
{
	for (uint32_t i = 0; i < lo->size; i++) {
		CUDA(cudaEventDestroy(lo->ready[i]));
		CUDA(cudaEventDestroy(lo->done[i]));
	}
}
