/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libengram_cuda: a table that engramd holds, read by the kernels of a GPU.
 *
 *	engram_cuda_table *t;
 *
 *	engram_open(NULL, &client);
 *	engram_cuda_attach(client, &(struct engram_attach_params){
 *		.table = "demo"}, NULL, &t);
 *	engram_cuda_wait(t, -1);
 *	engram_cuda_table_hash(t, &batch, ids, stream);
 *	engram_cuda_table_lookup(t, 0, &lookup, rows, stream);
 *	...
 *	cudaStreamSynchronize(stream);
 *	engram_cuda_detach(t);
 *
 * The rows stay where engramd put them: the table's memory is mapped, and
 * registered with CUDA (cudaHostRegister), so that the process holds no copy.
 *
 * Threads, fork and errors: as engram.h says; engram_last_error has the
 * message of these functions too.
 */
#ifndef ENGRAM_CUDA_H
#define ENGRAM_CUDA_H

#include "engram.h"
#include "engram_cuda_kernels.h"

#pragma GCC visibility push(default) /* libengram_cuda exports these */
#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" of the library in use; engram_version() is to be the same. */
const char *engram_cuda_version(void);

typedef struct engram_cuda_table engram_cuda_table;

/* ---- attaching ---- */

enum engram_cuda_placement {
	ENGRAM_CUDA_REGISTERED = 0, /* read over UVA where it is */
	ENGRAM_CUDA_DEVICE = 1,	    /* copied into device memory */
	ENGRAM_CUDA_HOST = 2	    /* not registered at all: engramd's threads
				     * gather (engram_cuda_gather.h).  Attaching
				     * takes no time and no page tables of the
				     * device, whatever the size of the table. */
};

struct engram_cuda_attach_params {
	int device; /* CUDA ordinal; -1: the calling thread's current one */
	enum engram_cuda_placement placement;
	/* Bytes registered (or copied) at once, rounded to whole rows and
	 * pages; 0: 4 GiB.  At most 256 GiB. */
	uint64_t chunk_bytes;
	/* Register a writable mapping and make it read-only afterwards, even
	 * if the device could register a read-only one.  For tests. */
	int force_writable;
};

/*
 * engram_attach, then registration in the background.  NULL params: the
 * current device, registered.  On an error nothing stays mapped, registered
 * or leased.  Where the device cannot register read-only memory, the attach
 * asks engramd for a writable descriptor, which it gives only to those who
 * may change tables (ENGRAM_EPERM).  ENGRAM_EUNSUPPORTED for a device that
 * does not see registered memory at its host address.  Of a table that has a
 * copy on each node of memory it is the one nearest to the device, unless
 * attach->choose_node names another.
 *
 * May run while another stream of the process is being captured.
 */
enum engram_status engram_cuda_attach(
	engram_client *client, const struct engram_attach_params *attach,
	const struct engram_cuda_attach_params *params,
	engram_cuda_table **out);

struct engram_cuda_progress {
	int ready;		   /* 1: lookups are possible */
	enum engram_status status; /* of the registration, when it has failed */
	uint64_t done_bytes, total_bytes;
	double seconds; /* spent registering so far */
};
enum engram_status engram_cuda_progress(const engram_cuda_table *table,
					struct engram_cuda_progress *out);

/* Until the table is ready.  ENGRAM_ETIMEDOUT after timeout_ms (-1: never), or
 * what the registration failed with, by then rolled back.  The handle stays the
 * caller's to detach. */
enum engram_status engram_cuda_wait(engram_cuda_table *table, int timeout_ms);

/*
 * Unregister, unmap, let go of the lease.  Work on the GPU that reads the
 * table must be over: synchronise its streams before, and replay no graph
 * after.  Cancels a registration under way.  NULL is allowed.  With
 * ENGRAM_ECUDA the device could not be reached, and the handle is gone too.
 * Detach before the process exits: what registers in the background must not
 * meet a runtime that is being unloaded.
 */
enum engram_status engram_cuda_detach(engram_cuda_table *table);

/*
 * To the next generation, or after a restart to the next engramd, as
 * engram_table_prepare and engram_table_refresh of engram.h:
 *
 *	if (engram_table_poll(engram_cuda_host_table(t)) != generation)
 *		status = engram_cuda_table_prepare(t, &next);
 *	if (!status && next)
 *		status = engram_cuda_table_refresh(t, next, stream);
 *
 * prepare never waits: a thread leases, maps and registers (or copies) what is
 * current beside what is in use, at twice the registered memory for that long.
 * ENGRAM_ENOTREADY until that is done, and while the generation before is let
 * go of: call it again at a later step.  *generation is 0 when there is nothing
 * new.  A failure is given for a tenth of a second, then it is tried again.
 * Memory that the next engramd has adopted stays registered where it is.
 */
enum engram_status engram_cuda_table_prepare(engram_cuda_table *table,
					     uint64_t *generation);
/*
 * Change over in stream order: work that is in `stream` already reads the
 * generation before, work that follows reads `generation` (0: whatever is
 * prepared), in all layers; captured graphs, too, whose hash parameters and
 * descriptors stay where they are.  Other streams that use the handle have to
 * be ordered before and after it (cudaStreamWaitEvent).  No other call may use
 * the handle meanwhile.  ENGRAM_EGONE when it is not prepared, ENGRAM_EINVAL
 * while the stream is captured; after any error the handle is as it was.
 * Registered memory is let go of by a thread once the stream is past this.
 */
enum engram_status engram_cuda_table_refresh(engram_cuda_table *table,
					     uint64_t generation,
					     engram_stream stream);

/*
 * engram_table_park, for a table that is reloaded in place: waits for what is
 * in `stream`, and registered memory stays registered.  Whatever other streams
 * have that reads by this handle is for the caller to wait for before, and no
 * graph that does may be launched until engram_cuda_table_refresh; lookups are
 * ENGRAM_ENOTREADY.  Copies on the device (ENGRAM_CUDA_DEVICE) are made anew by
 * the refresh.  Not while the stream is captured (ENGRAM_EINVAL).
 */
enum engram_status engram_cuda_table_park(engram_cuda_table *table,
					  engram_stream stream);

struct engram_cuda_info {
	int device;
	enum engram_cuda_placement placement;
	int read_only;		   /* registered read-only from the start */
	uint32_t chunks;	   /* that are registered, or copied */
	uint64_t registered_bytes; /* host memory pinned for the device */
	uint64_t device_bytes;	   /* allocated by this handle */
	double register_seconds;
};
enum engram_status engram_cuda_info(const engram_cuda_table *table,
				    struct engram_cuda_info *out);

/* The table below, for engram_table_info, engram_table_poll, engram_layer_info
 * and the CPU path; belongs to the handle. */
const engram_table *engram_cuda_host_table(const engram_cuda_table *table);

/* ---- using it, stream-ordered; ENGRAM_ENOTREADY before it is ready ---- */

/*
 * The current device must be the handle's, as that of any launch: the default
 * stream is the current device's, and a kernel of another device faults at the
 * handle's memory.  ENGRAM_ECUDA for another device's stream.
 */

/* For engram_cuda_hash: host arrays of device pointers, valid until detach. */
enum engram_status engram_cuda_hash_params(const engram_cuda_table *table,
					   struct engram_hash_params *out);
/* For engram_cuda_lookup, with the descriptor of the layer. */
enum engram_status engram_cuda_layer_source(const engram_cuda_table *table,
					    uint32_t layer,
					    struct engram_cuda_source *out);

/* out int32 [num_tokens, num_layers attached, num_cols]; with a slot cache and
 * a slot mapping in the batch, writes the batch's slots first. */
enum engram_status engram_cuda_table_hash(engram_cuda_table *table,
					  const struct engram_hash_batch *batch,
					  int32_t *out, engram_stream stream);

struct engram_cuda_lookup_params {
	const int32_t *ids; /* [num_tokens, num_cols] */
	int64_t ids_token_stride, ids_head_stride;
	int64_t num_tokens;
	struct engram_cuda_grid grid;
};
/* This rank's heads: out bf16 [num_tokens, local_heads, dim]. */
enum engram_status engram_cuda_table_lookup(
	engram_cuda_table *table, uint32_t layer,
	const struct engram_cuda_lookup_params *params, uint16_t *out,
	engram_stream stream);
enum engram_status engram_cuda_table_lookup_raw(
	engram_cuda_table *table, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	const struct engram_raw_out *out, engram_stream stream);

/*
 * Hash, and lookup of all layers: the rows of the calls above, with fewer
 * launches for a few tokens (engram_cuda_hash_lookup).  `outs` is a host array
 * [num_layers attached] of device pointers, bf16 [num_tokens, local_heads, dim]
 * each; `ids` scratch on the device, int32 [num_tokens, num_layers attached,
 * num_cols].  `grid` may be NULL.
 */
enum engram_status engram_cuda_table_hash_lookup(
	engram_cuda_table *table, const struct engram_hash_batch *batch,
	int32_t *ids, uint16_t *const *outs,
	const struct engram_cuda_grid *grid, engram_stream stream);

/* What the kernels of this handle have counted since attach. */
struct engram_cuda_counters {
	uint64_t misses;  /* ids of this rank's heads that no row answers */
	uint64_t rejects; /* token ids and slots out of range */
};
/* Waits for what is in the stream; ENGRAM_EINVAL while it is captured. */
enum engram_status engram_cuda_counters(engram_cuda_table *table,
					engram_stream stream,
					struct engram_cuda_counters *out);

/* ---- tensor parallelism over NCCL ---- */

/*
 * The caller's ncclComm_t as an engram_comm.  NCCL is not linked: the
 * libnccl.so.2 that the process has loaded is used.  ENGRAM_EUNSUPPORTED when
 * there is none.  The ncclComm_t stays the caller's and must outlive *out.
 */
enum engram_status engram_nccl_comm(void *nccl_comm, struct engram_comm *out);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
