/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shim_call.h"

#define POISON	  0xa5
#define ALIGNMENT 16
#define PAGE	  65536 /* at least the system's */
/* Of empty arrays: not NULL, and no address of anything. */
#define NOWHERE ((void *)0x100)

void shim_check(cudaError_t error, const char *what, const char *file, int line)
{
	if (!error)
		return;
	fflush(stdout);
	fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, what,
		cudaGetErrorString(error), cudaGetErrorName(error));
	exit(1);
}

void shim_begin(struct shim_call *call)
{
	static cudaStream_t stream;

	if (!stream)
		SHIM_CUDA(cudaStreamCreateWithFlags(&stream,
						    cudaStreamNonBlocking));
	call->stream = stream;
	call->count = 0;
}

struct shim_span shim_span_of(const struct shim_array *array)
{
	struct shim_span span = {array->first, array->first};
	int64_t low = 0, high = 0;

	if (!array->first)
		return span;
	for (int d = 0; d < 3; d++) {
		int64_t way = (array->shape[d] - 1) * array->stride[d];

		if (array->shape[d] <= 0)
			return span;
		if (way < 0)
			low += way;
		else
			high += way;
	}
	span.begin += low * (int64_t)array->item;
	span.end += (high + 1) * (int64_t)array->item;
	return span;
}

static struct shim_buffer *new_buffer(struct shim_call *call, size_t bytes)
{
	struct shim_buffer *buffer = &call->buffers[call->count++];

	if (call->count > SHIM_MAX_BUFFERS) {
		fprintf(stderr, "shim: more than %d arrays in a call\n",
			SHIM_MAX_BUFFERS);
		exit(1);
	}
	memset(buffer, 0, sizeof(*buffer));
	buffer->bytes = bytes;
	return buffer;
}

/* Device memory that ends with the span. */
static struct shim_buffer *place(struct shim_call *call, struct shim_span span)
{
	size_t bytes = (size_t)(span.end - span.begin);
	size_t shift = (uintptr_t)span.begin % ALIGNMENT;
	struct shim_buffer *buffer = new_buffer(call, bytes);

	SHIM_CUDA(cudaMalloc(&buffer->base, shift + bytes));
	buffer->device = (char *)buffer->base + shift;
	return buffer;
}

/* Host memory that ends with the span, but for the alignment, and with a
 * page that nobody may read behind it. */
static struct shim_buffer *place_registered(struct shim_call *call,
					    struct shim_span span)
{
	size_t bytes = (size_t)(span.end - span.begin);
	size_t room = (bytes + ALIGNMENT + PAGE - 1) / PAGE * PAGE;
	struct shim_buffer *buffer = new_buffer(call, bytes);
	void *device;
	char *base, *at;

	base = mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED || mprotect(base + room, PAGE, PROT_NONE)) {
		perror("shim: mmap");
		exit(1);
	}
	at = base + room - bytes;
	at -= ((uintptr_t)at - (uintptr_t)span.begin) % ALIGNMENT;
	memcpy(at, span.begin, bytes);
	SHIM_CUDA(cudaHostRegister(base, room, cudaHostRegisterMapped));
	SHIM_CUDA(cudaHostGetDevicePointer(&device, base, 0));
	buffer->base = base;
	buffer->mapping = room + PAGE;
	buffer->device = (char *)device + (at - base);
	return buffer;
}

char *shim_copy(struct shim_call *call, struct shim_span span, int registered)
{
	struct shim_buffer *buffer;

	if (registered)
		return place_registered(call, span)->device;
	buffer = place(call, span);
	SHIM_CUDA(cudaMemcpyAsync(buffer->device, span.begin, buffer->bytes,
				  cudaMemcpyHostToDevice, call->stream));
	return buffer->device;
}

static int empty(const struct shim_array *array)
{
	struct shim_span span = shim_span_of(array);

	return span.begin == span.end;
}

/* The device address of the first item of an array whose span is there. */
static void *first_item(const struct shim_array *array, char *device)
{
	return device +
	       ((const char *)array->first - shim_span_of(array).begin);
}

void *shim_in(struct shim_call *call, const struct shim_array *array)
{
	if (empty(array))
		return array->first ? NOWHERE : NULL;
	return first_item(array, shim_copy(call, shim_span_of(array), 0));
}

void *shim_inout(struct shim_call *call, const struct shim_array *array)
{
	void *first = shim_in(call, array);

	if (!empty(array))
		call->buffers[call->count - 1].back_to =
			(void *)(uintptr_t)shim_span_of(array).begin;
	return first;
}

/* Without gaps and repetitions between its items. */
static int is_dense(const struct shim_array *array, size_t bytes)
{
	size_t count = 1;

	for (int d = 0; d < 3; d++)
		count *= (size_t)array->shape[d];
	return count * array->item == bytes;
}

static void poison_items(const struct shim_array *array, char *first)
{
	for (int64_t i = 0; i < array->shape[0]; i++)
		for (int64_t j = 0; j < array->shape[1]; j++)
			for (int64_t k = 0; k < array->shape[2]; k++) {
				int64_t at = i * array->stride[0] +
					     j * array->stride[1] +
					     k * array->stride[2];

				memset(first + at * (int64_t)array->item,
				       POISON, array->item);
			}
}

void *shim_out(struct shim_call *call, const struct shim_array *array)
{
	struct shim_span span = shim_span_of(array);
	struct shim_buffer *buffer;
	char *copy;

	if (empty(array))
		return array->first ? NOWHERE : NULL;
	buffer = place(call, span);
	buffer->back_to = (void *)(uintptr_t)span.begin;
	if (engram_shim_options.no_poison && is_dense(array, buffer->bytes))
		return first_item(array, buffer->device);
	copy = malloc(buffer->bytes);
	if (!copy) {
		fprintf(stderr, "shim: out of memory\n");
		exit(1);
	}
	memcpy(copy, span.begin, buffer->bytes);
	poison_items(array, first_item(array, copy));
	SHIM_CUDA(cudaMemcpyAsync(buffer->device, copy, buffer->bytes,
				  cudaMemcpyHostToDevice, call->stream));
	SHIM_CUDA(cudaStreamSynchronize(call->stream));
	free(copy);
	return first_item(array, buffer->device);
}

static enum engram_status cuda_failed(struct engram_error *err,
				      cudaError_t error, const char *what)
{
	engram_error_set(err, ENGRAM_ECUDA, "%s: %s (%s)", what,
			 cudaGetErrorString(error), cudaGetErrorName(error));
	engram_error_fix(err, "run the test under compute-sanitizer");
	return ENGRAM_ECUDA;
}

enum engram_status shim_end(struct shim_call *call, enum engram_status status,
			    struct engram_error *err)
{
	cudaError_t left = cudaGetLastError();
	cudaError_t run = cudaStreamSynchronize(call->stream);

	if (run)
		status = cuda_failed(err, run, "the kernel failed");
	else if (left)
		status = cuda_failed(err, left, "the call left an error");
	for (int i = 0; i < call->count; i++) {
		struct shim_buffer *b = &call->buffers[i];

		if (!status && b->back_to)
			SHIM_CUDA(cudaMemcpyAsync(
				b->back_to, b->device, b->bytes,
				cudaMemcpyDeviceToHost, call->stream));
	}
	if (!run)
		SHIM_CUDA(cudaStreamSynchronize(call->stream));
	/* After a failed kernel nothing can be freed any more. */
	for (int i = 0; !run && i < call->count; i++) {
		struct shim_buffer *b = &call->buffers[i];

		if (b->mapping) {
			SHIM_CUDA(cudaHostUnregister(b->base));
			munmap(b->base, b->mapping);
		} else {
			SHIM_CUDA(cudaFree(b->base));
		}
	}
	return status;
}
