/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the shim: the device copies that one call works on. */
#ifndef ENGRAM_SHIM_CALL_H
#define ENGRAM_SHIM_CALL_H

#include <cuda_runtime_api.h>

#include "shim.h"

/* Ends the program with the failed call and its error. */
void shim_check(cudaError_t error, const char *what, const char *file,
		int line);
#define SHIM_CUDA(call) shim_check((call), #call, __FILE__, __LINE__)

/* An array in host memory, of up to three dimensions; strides in items. */
struct shim_array {
	const void *first; /* item [0, 0, 0], or NULL for no array */
	size_t item;	   /* bytes */
	int64_t shape[3], stride[3];
};
#define SHIM_ARRAY1(first, n0, s0) \
	((struct shim_array){(first), sizeof(*(first)), {n0, 1, 1}, {s0, 0, 0}})
#define SHIM_ARRAY2(first, n0, n1, s0, s1) \
	((struct shim_array){              \
		(first), sizeof(*(first)), {n0, n1, 1}, {s0, s1, 0}})
#define SHIM_ARRAY3(first, n0, n1, n2, strides) \
	((struct shim_array){(first),           \
			     sizeof(*(first)),  \
			     {n0, n1, n2},      \
			     {(strides)[0], (strides)[1], (strides)[2]}})

/* The bytes from the first one of an array to behind its last one. */
struct shim_span {
	const char *begin, *end; /* equal: an empty array */
};
struct shim_span shim_span_of(const struct shim_array *array);

struct shim_buffer {
	char *device;	/* where the span begins for the device */
	void *back_to;	/* host address to copy back to, or NULL */
	size_t bytes;	/* of the span */
	void *base;	/* what to free */
	size_t mapping; /* bytes of a registered mapping, 0: cudaMalloc */
};
/* 64 layers of three arrays, their rows and results, and the rest */
#define SHIM_MAX_BUFFERS 512
struct shim_call {
	cudaStream_t stream;
	int count;
	struct shim_buffer buffers[SHIM_MAX_BUFFERS];
};

void shim_begin(struct shim_call *call);

/*
 * A copy of a span; the device address of its first byte.  Its alignment to
 * 16 bytes is that in host memory.  With `registered` it stays in host
 * memory, ends where the pages do, and is registered.
 */
char *shim_copy(struct shim_call *call, struct shim_span span, int registered);

/* These return the device address of item [0, 0, 0]: NULL for no array, and
 * for an empty one an address that cannot be read. */
void *shim_in(struct shim_call *call, const struct shim_array *array);
/* copied there and back */
void *shim_inout(struct shim_call *call, const struct shim_array *array);
/* Poisoned, but for gaps, and copied back. */
void *shim_out(struct shim_call *call, const struct shim_array *array);

/*
 * After the launch: waits, copies back if there was no error, frees.
 * `status` is that of the launch.  ENGRAM_ECUDA when the kernel failed, or
 * when the launch left a CUDA error behind.
 */
enum engram_status shim_end(struct shim_call *call, enum engram_status status,
			    struct engram_error *err);

#endif
