/* SPDX-License-Identifier: Apache-2.0 */
/* An ncclComm_t as an engram_comm. */
#include "engram_cuda.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>

#define NCCL_SONAME "libnccl.so.2"
#define FUNCTIONS(F)             \
	F(ncclAllGather)         \
	F(ncclCommCount)         \
	F(ncclCommGetAsyncError) \
	F(ncclCommUserRank)      \
	F(ncclGetErrorString)

/* Written once, before the first engram_comm that uses it is handed out. */
static struct {
#define MEMBER(name) __typeof__(name) *name;
	FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded;

/*
 * The caller's communicator only means something to the NCCL that made it: so
 * the one in the process, whether its names are visible to all or it came with
 * a Python module.  Another one is not loaded.
 */
static void *find_library(void)
{
	if (dlsym(RTLD_DEFAULT, "ncclAllGather"))
		return RTLD_DEFAULT;
	/* The reference is kept: the functions stay in use. */
	return dlopen(NCCL_SONAME, RTLD_NOW | RTLD_NOLOAD);
}

static enum engram_status load(struct engram_error *err)
{
	void *library = find_library();
	const char *missing = NULL;

	/* RTLD_DEFAULT is NULL too */
#define RESOLVE(name)                                          \
	nccl.name = (__typeof__(name) *)dlsym(library, #name); \
	if (!nccl.name && !missing)                            \
		missing = #name;
	FUNCTIONS(RESOLVE)
#undef RESOLVE
	if (!missing) {
		loaded = 1;
		return ENGRAM_OK;
	}
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "the NCCL that made the communicator is not to be "
			 "found: no %s",
			 missing);
	engram_error_fix(err, "link NCCL 2 as " NCCL_SONAME ", or give an "
			      "engram_comm of your own");
	return ENGRAM_EUNSUPPORTED;
}

static enum engram_status failed(ncclResult_t result, ncclComm_t comm,
				 const char *call, struct engram_error *err)
{
	ncclResult_t late = ncclSuccess;

	if (result == ncclSuccess)
		return ENGRAM_OK;
	cudaGetLastError(); /* it may stand for a CUDA error: consumed */
	engram_error_set(err, ENGRAM_ENCCL, "%s: %s", call,
			 nccl.ncclGetErrorString(result));
	/* often the cause: another rank, or the network, was lost before */
	if (comm && nccl.ncclCommGetAsyncError(comm, &late) == ncclSuccess &&
	    late != ncclSuccess && late != ncclInProgress && late != result)
		engram_error_set(err, ENGRAM_ENCCL,
				 "%s: %s; earlier on the communicator: %s",
				 call, nccl.ncclGetErrorString(result),
				 nccl.ncclGetErrorString(late));
	engram_error_fix(err, "run with NCCL_DEBUG=WARN for the cause; then "
			      "abort the communicator on every rank and make "
			      "a new one");
	return ENGRAM_ENCCL;
}

static enum engram_status all_gather(void *context, const void *send,
				     void *recv, size_t bytes,
				     engram_stream stream,
				     struct engram_error *err)
{
	ncclComm_t comm = context;
	ncclResult_t result =
		nccl.ncclAllGather(send, recv, bytes, ncclInt8, comm, stream);

	/* a non-blocking communicator is enqueueing still */
	while (result == ncclInProgress) {
		ncclResult_t asked = nccl.ncclCommGetAsyncError(comm, &result);

		if (asked != ncclSuccess)
			result = asked;
		else if (result == ncclInProgress)
			sched_yield();
	}
	return failed(result, comm, "ncclAllGather", err);
}

static enum engram_status describe(ncclComm_t comm, struct engram_comm *out,
				   struct engram_error *err)
{
	int rank = 0, size = 0;
	enum engram_status status = failed(nccl.ncclCommUserRank(comm, &rank),
					   NULL, "ncclCommUserRank", err);

	if (!status)
		status = failed(nccl.ncclCommCount(comm, &size), NULL,
				"ncclCommCount", err);
	if (status)
		return status;
	*out = (struct engram_comm){
		.rank = (uint32_t)rank,
		.size = (uint32_t)size,
		.all_gather = all_gather,
		.context = comm,
	};
	return ENGRAM_OK;
}

static enum engram_status open_comm(void *nccl_comm, struct engram_comm *out,
				    struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	if (!nccl_comm) {
		engram_error_set(err, ENGRAM_EINVAL, "nccl_comm: NULL");
		engram_error_fix(err, "pass the ncclComm_t; for a single rank "
				      "an engram_comm of size 1 will do");
		return ENGRAM_EINVAL;
	}
	pthread_mutex_lock(&lock);
	if (!loaded)
		status = load(err);
	pthread_mutex_unlock(&lock);
	return status ? status : describe(nccl_comm, out, err);
}
#else
static enum engram_status open_comm(void *nccl_comm, struct engram_comm *out,
				    struct engram_error *err)
{
	(void)nccl_comm;
	(void)out;
	engram_error_set(err, ENGRAM_EUNSUPPORTED, "built without nccl.h");
	engram_error_fix(err, "build with NCCL, or give an engram_comm of "
			      "your own");
	return ENGRAM_EUNSUPPORTED;
}
#endif

enum engram_status engram_nccl_comm(void *nccl_comm, struct engram_comm *out)
{
	struct engram_error err;

	return open_comm(nccl_comm, out, &err) ? engram_set_last_error(&err)
					       : ENGRAM_OK;
}
