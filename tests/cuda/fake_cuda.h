/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime without a GPU, of the calls that libengram_cuda makes: device
 * memory is host memory, streams do at once what they are told, kernels are the
 * CPU backend's.  It keeps book, so that a test can say what is registered
 * and allocated, and lets any call fail.
 */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>

struct fake_range {
	char *address;
	size_t bytes;
	unsigned int flags;
};

struct fake_cuda {
	pthread_mutex_t lock;
	/* what the devices can do */
	int registers, same_address, read_only;
	int devices;
	const char *bus_id;    /* of device 1; that of device 0 is not known */
	unsigned int contexts; /* 1 << device: it has one, memory is gone */
	/* what there is */
	struct fake_range ranges[256];
	int num_ranges;
	int registered_ever;
	int allocations, streams, events;
	/* cudaGetLastError has not been called since a call failed */
	int pending_errors;
	/* the call of that number, from 1, fails with `error` */
	int calls, fail_at;
	cudaError_t error;
	const char *failed; /* its name */
	/* the registration of that number, from 1, finds no memory */
	int refuse_range;
	/* calls made by a thread that was not in relaxed capture mode */
	int strict_calls;
	int capturing; /* every stream is */
	/* registrations wait until this is 0; how many do */
	int hold, held;
	pthread_cond_t released;
};

extern struct fake_cuda fake_cuda;

/* Two H200 with nothing on them; device 0 and the global capture mode for this
 * thread. */
void fake_cuda_reset(void);
void fake_cuda_release(void);
/* Until a registration waits. */
void fake_cuda_await_held(void);

#endif
