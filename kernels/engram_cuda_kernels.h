/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend: the functions of engram_kernels.h with the same argument
 * structures, on device pointers and a stream.
 *
 * Pointers: every array that a structure points to, the outputs and the
 * counters must be readable (or writable) by the device: device memory or
 * registered host memory.  The structures themselves are host memory and are
 * read during the call only.
 *
 * A call checks what it can see on the host, launches, and returns.  It
 * allocates nothing, never synchronises and calls nothing back, so that it can
 * be captured into a CUDA graph; the pointers that it was given are in the
 * graph then, what they point to is read at each replay.  What the CPU
 * backend refuses after looking at the data is made harmless and counted
 * here.  The current device must be that of the stream.
 *
 * Errors: ENGRAM_EINVAL as the CPU backend, ENGRAM_ECUDA when the launch failed
 * (the CUDA error is consumed: it does not show up in a later call of the
 * caller's).  Errors of the kernel itself appear at the stream, as always.
 *
 * Thread-safe on distinct outputs.
 */
#ifndef ENGRAM_CUDA_KERNELS_H
#define ENGRAM_CUDA_KERNELS_H

#include "engram_comm.h"
#include "engram_kernels.h"

#pragma GCC visibility push(default) /* libengram_cuda exports these */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- hash ---- */

/*
 * As engram_cpu_hash, in one launch for all layers.  params->multipliers,
 * primes and offsets are host arrays of device pointers; at most 64 layers.
 * Ids outside the token map count as the pad id; *rejects, if not NULL (device
 * memory), grows by the live ones of the batch.
 */
enum engram_status engram_cuda_hash(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    int32_t *out, uint64_t *rejects,
				    engram_stream stream,
				    struct engram_error *err);

/* As engram_cpu_write_slots.  Slots past the cache are not written and are
 * counted in *rejects. */
enum engram_status engram_cuda_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, uint64_t *rejects,
	engram_stream stream, struct engram_error *err);

/* ---- lookup ---- */

/*
 * What a lookup reads, in device memory at an address that stays: a kernel
 * takes pointers, row range and tensor scale from here when it
 * runs, so that a captured graph follows when they are changed in stream
 * order.
 */
struct engram_cuda_descriptor {
	struct engram_rows rows;
	uint64_t generation;
	uint64_t epoch; /* another one whenever rows may have changed */
};

struct engram_cuda_source {
	/*
	 * With a descriptor: dtype, scale scheme, dim, block size and strides,
	 * which the descriptor's must equal.  Of the pointers only their
	 * alignment counts, which the descriptor's must have too (NULL: 16
	 * bytes).
	 */
	struct engram_rows rows;
	const struct engram_cuda_descriptor *descriptor; /* or NULL */
	/* Non-zero: the rows are in device memory, so that more of the device
	 * is worth taking. */
	int resident;
};

enum engram_cuda_hint {
	/* the model runs beside: take as few multiprocessors as reach full
	 * speed */
	ENGRAM_CUDA_BACKGROUND = 0,
	/* nothing runs beside: a small batch may take more */
	ENGRAM_CUDA_FOREGROUND = 1
};

struct engram_cuda_grid {
	uint32_t blocks; /* 0: by the hint */
	enum engram_cuda_hint hint;
};

/*
 * As engram_cpu_lookup; any dim.  args->misses is device memory.  `grid` may be
 * NULL.  Fastest where codes and scales of a row begin at multiples of 8 bytes
 * and dim is a multiple of 8.
 */
enum engram_status engram_cuda_lookup(const struct engram_cuda_source *source,
				      const struct engram_lookup_args *args,
				      uint16_t *out,
				      const struct engram_cuda_grid *grid,
				      engram_stream stream,
				      struct engram_error *err);

/* As engram_cpu_lookup_raw. */
enum engram_status engram_cuda_lookup_raw(
	const struct engram_cuda_source *source,
	const struct engram_lookup_args *args, const struct engram_raw_out *out,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err);

/* As engram_cpu_decode: staged rows, in device memory for full speed. */
enum engram_status engram_cuda_decode(const struct engram_rows *rows,
				      int64_t num_rows, uint16_t *out,
				      engram_stream stream,
				      struct engram_error *err);

/* ---- hash and lookup of all layers ---- */

/* What engram_cuda_hash_lookup reads and writes besides a batch. */
struct engram_cuda_step {
	const struct engram_cuda_source *sources; /* [num_layers], host */
	/* [num_layers], host array of device pointers: bf16
	 * [num_tokens, local_heads, dim] each */
	uint16_t *const *outs;
	/* scratch on the device, int32 [num_tokens, num_layers, cols]; holds
	 * nothing to rely on afterwards */
	int32_t *ids;
	uint32_t head_begin, local_heads; /* of this rank */
	uint64_t *misses, *rejects;	  /* device memory, or NULL */
};

/*
 * engram_cuda_write_slots if there are a slot cache and a slot mapping,
 * engram_cuda_hash, and
 * engram_cuda_lookup of every layer: the same rows.  A decode-sized batch of
 * rows of dim 256 takes one launch instead of one and one a layer.
 */
enum engram_status engram_cuda_hash_lookup(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch,
	const struct engram_cuda_step *step,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err);

/* ---- gate, sequence-parallel rows ---- */

enum engram_status engram_cuda_gate(const struct engram_gate_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err);

enum engram_status engram_cuda_sp_rows(const struct engram_sp_rows_args *args,
				       uint16_t *out, engram_stream stream,
				       struct engram_error *err);

/* As engram_cpu_tp_gather, on device pointers. */
enum engram_status engram_cuda_tp_gather(
	const struct engram_comm *comm,
	const struct engram_tp_gather_args *args, uint16_t *out,
	engram_stream stream, struct engram_error *err);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
