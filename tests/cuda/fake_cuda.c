/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <assert.h>
#include <cuda.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct fake_cuda fake_cuda = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.released = PTHREAD_COND_INITIALIZER,
	.registers = 1,
	.same_address = 1,
	.read_only = 1,
	.devices = 2,
};
static _Thread_local enum cudaStreamCaptureMode mode =
	cudaStreamCaptureModeGlobal;
static _Thread_local int current;
static _Thread_local cudaError_t last;

/* of the call it is in */
#define begin(safe) begin_call(__func__, safe)

void fake_cuda_reset(void)
{
	pthread_mutex_lock(&fake_cuda.lock);
	fake_cuda.registers = fake_cuda.same_address = 1;
	fake_cuda.read_only = 1;
	fake_cuda.registered_ever = 0;
	fake_cuda.devices = 2;
	fake_cuda.bus_id = NULL;
	fake_cuda.contexts = 0;
	fake_cuda.failed = NULL;
	fake_cuda.calls = fake_cuda.fail_at = 0;
	fake_cuda.strict_calls = fake_cuda.hold = 0;
	fake_cuda.refuse_range = 0;
	fake_cuda.pending_errors = 0;
	pthread_mutex_unlock(&fake_cuda.lock);
	last = cudaSuccess;
	current = 0;
	mode = cudaStreamCaptureModeGlobal;
	fake_cuda.capturing = 0;
}

void fake_cuda_release(void)
{
	pthread_mutex_lock(&fake_cuda.lock);
	fake_cuda.hold = 0;
	pthread_cond_broadcast(&fake_cuda.released);
	pthread_mutex_unlock(&fake_cuda.lock);
}

void fake_cuda_await_held(void)
{
	pthread_mutex_lock(&fake_cuda.lock);
	while (!fake_cuda.held)
		pthread_cond_wait(&fake_cuda.released, &fake_cuda.lock);
	pthread_mutex_unlock(&fake_cuda.lock);
}

static cudaError_t failing(cudaError_t error)
{
	if (error) {
		if (!last)
			fake_cuda.pending_errors++;
		last = error;
	}
	return error;
}

/* Begin a call, with the lock held: may it succeed?  What is not safe while
 * streams are captured needs a context, too. */
static cudaError_t begin_call(const char *name, int safe)
{
	pthread_mutex_lock(&fake_cuda.lock);
	fake_cuda.calls++;
	if (!safe && mode != cudaStreamCaptureModeRelaxed)
		fake_cuda.strict_calls++;
	if (!safe)
		fake_cuda.contexts |= 1u << current;
	if (fake_cuda.calls != fake_cuda.fail_at)
		return cudaSuccess;
	fake_cuda.failed = name;
	return failing(fake_cuda.error);
}

static cudaError_t end(cudaError_t error)
{
	pthread_mutex_unlock(&fake_cuda.lock);
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last;

	pthread_mutex_lock(&fake_cuda.lock);
	if (error)
		fake_cuda.pending_errors--;
	pthread_mutex_unlock(&fake_cuda.lock);
	last = cudaSuccess;
	return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
	return error ? "cudaErrorFake" : "cudaSuccess";
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error ? "made to fail" : "no error";
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m)
{
	enum cudaStreamCaptureMode before = mode;
	cudaError_t error = begin(1);

	/* it might need one: nobody says that it does not */
	fake_cuda.contexts |= 1u << current;
	if (!error) {
		mode = *m;
		*m = before;
	}
	return end(error);
}

cudaError_t cudaGetDevice(int *device)
{
	*device = current;
	return end(begin(1));
}

cudaError_t cudaSetDevice(int device)
{
	cudaError_t error = begin(1);

	if (!error && (device < 0 || device >= fake_cuda.devices))
		error = failing(cudaErrorInvalidDevice);
	if (!error) {
		current = device;
		fake_cuda.contexts |= 1u << current;
	}
	return end(error);
}

/* What comes of an error is no failure of anything: none is planted here. */
cudaError_t cudaDeviceGetPCIBusId(char *bus_id, int size, int device)
{
	const char *id = device == 1 ? fake_cuda.bus_id : NULL;

	if (!id) {
		pthread_mutex_lock(&fake_cuda.lock);
		return end(failing(cudaErrorInvalidDevice));
	}
	assert((int)strlen(id) < size);
	memcpy(bus_id, id, strlen(id) + 1);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
				   int device)
{
	cudaError_t error = begin(1);

	(void)device;
	switch (attribute) {
	case cudaDevAttrHostRegisterSupported:
		*value = fake_cuda.registers;
		break;
	case cudaDevAttrCanUseHostPointerForRegisteredMem:
		*value = fake_cuda.same_address;
		break;
	case cudaDevAttrHostRegisterReadOnlySupported:
		*value = fake_cuda.read_only;
		break;
	default:
		*value = 1;
	}
	return end(error);
}

static int overlap(const struct fake_range *a, const char *address,
		   size_t bytes)
{
	return a->address < address + bytes && address < a->address + a->bytes;
}

static void touch(const char *address, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 4096)
		(void)*(const volatile char *)(address + at);
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned int flags)
{
	cudaError_t error = begin(0);

	fake_cuda.held++;
	pthread_cond_broadcast(&fake_cuda.released);
	while (fake_cuda.hold)
		pthread_cond_wait(&fake_cuda.released, &fake_cuda.lock);
	fake_cuda.held--;
	for (int i = 0; i < fake_cuda.num_ranges && !error; i++)
		if (overlap(&fake_cuda.ranges[i], address, bytes))
			error = failing(cudaErrorHostMemoryAlreadyRegistered);
	if (!error && (flags & cudaHostRegisterReadOnly) &&
	    !fake_cuda.read_only)
		error = failing(cudaErrorNotSupported);
	if (!error && fake_cuda.registered_ever + 1 == fake_cuda.refuse_range)
		error = failing(cudaErrorMemoryAllocation);
	if (!error) {
		/* pinning has every page in place */
		touch(address, bytes);
		assert(fake_cuda.num_ranges < 256);
		fake_cuda.ranges[fake_cuda.num_ranges++] =
			(struct fake_range){address, bytes, flags};
		fake_cuda.registered_ever++;
	}
	return end(error);
}

cudaError_t cudaHostUnregister(void *address)
{
	cudaError_t error = begin(0);
	int i = 0;

	while (i < fake_cuda.num_ranges &&
	       fake_cuda.ranges[i].address != address)
		i++;
	if (i == fake_cuda.num_ranges)
		return end(failing(cudaErrorHostMemoryNotRegistered));
	/* pages that are gone can not be unpinned */
	touch(address, fake_cuda.ranges[i].bytes);
	fake_cuda.ranges[i] = fake_cuda.ranges[--fake_cuda.num_ranges];
	return end(error);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host,
				     unsigned int flags)
{
	cudaError_t error = begin(1);

	(void)flags;
	*device = fake_cuda.same_address < 2 ? host : (char *)host + 4096;
	return end(error);
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return end(begin(1));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return end(begin(1));
}

/* ---- memory and streams ---- */

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	cudaError_t error = begin(0);

	*available = *total = (size_t)1 << 37;
	/* as much as page tables take */
	for (int i = 0; i < fake_cuda.num_ranges; i++)
		*available -= fake_cuda.ranges[i].bytes / 512;
	return end(error);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
	cudaError_t error = begin(0);

	if (!error) {
		*out = malloc(bytes ? bytes : 1);
		if (!*out)
			return end(failing(cudaErrorMemoryAllocation));
		fake_cuda.allocations++;
	}
	return end(error);
}

cudaError_t cudaFree(void *memory)
{
	cudaError_t error = begin(0);

	if (memory) {
		free(memory);
		fake_cuda.allocations--;
	}
	return end(error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
			    enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t error = begin(1);

	(void)kind;
	(void)stream;
	if (!error)
		memcpy(to, from, bytes);
	return end(error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes,
			    cudaStream_t stream)
{
	cudaError_t error = begin(1);

	(void)stream;
	if (!error)
		memset(to, value, bytes);
	return end(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
		       enum cudaMemcpyKind kind)
{
	return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
	cudaError_t error = begin(0);

	(void)flags;
	if (!error) {
		*out = malloc(1);
		if (!*out)
			return end(failing(cudaErrorMemoryAllocation));
		fake_cuda.streams++;
	}
	return end(error);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	cudaError_t error = begin(0);

	free(stream);
	fake_cuda.streams--;
	return end(error);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
	cudaError_t error = begin(0);

	if (!error) {
		*out = malloc(1);
		if (!*out)
			return end(failing(cudaErrorMemoryAllocation));
		fake_cuda.events++;
	}
	return end(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
	(void)flags;
	return cudaEventCreate(out);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
				unsigned int flags)
{
	(void)stream;
	(void)event;
	(void)flags;
	return end(begin(1));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	cudaError_t error = begin(0);

	free(event);
	fake_cuda.events--;
	return end(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	(void)event;
	return end(begin(0));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	(void)event;
	(void)stream;
	return end(begin(1));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	(void)event;
	return end(begin(0));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	(void)from;
	(void)to;
	*ms = 1;
	return end(begin(1));
}

/* As a stream does: it waits for ever. */
static CUresult wait_value(CUstream stream, CUdeviceptr address,
			   cuuint32_t value, unsigned int flags)
{
	const uint32_t *at = (const uint32_t *)address;

	(void)stream;
	assert(flags == CU_STREAM_WAIT_VALUE_AND);
	while (!(__atomic_load_n(at, __ATOMIC_ACQUIRE) & value))
		sched_yield();
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(
	const char *symbol, void **function, unsigned int version,
	unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
	cudaError_t error = begin(1);

	(void)version;
	(void)flags;
	assert(!strcmp(symbol, "cuStreamWaitValue32"));
	*(CUresult(**)(CUstream, CUdeviceptr, cuuint32_t,
		       unsigned int))function = wait_value;
	*found = cudaDriverEntryPointSuccess;
	return end(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
				  enum cudaStreamCaptureStatus *status)
{
	(void)stream;
	*status = fake_cuda.capturing ? cudaStreamCaptureStatusActive
				      : cudaStreamCaptureStatusNone;
	return end(begin(1));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	(void)stream;
	return end(begin(0));
}

cudaError_t cudaDeviceSynchronize(void)
{
	return end(begin(0));
}
