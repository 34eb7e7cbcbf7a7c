/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend behind the CPU backend's signatures: each function takes
 * host pointers, runs the kernel on copies in device memory and copies the
 * results back, so that tests written for the CPU run on the GPU.
 *
 * Each array is copied alone, its exact span from the first byte addressed to
 * the last, so that compute-sanitizer sees a read outside of it.  Outputs are
 * poisoned before.  Kernels run on a stream that does not wait for the
 * default one.
 *
 * A CUDA error of the kernel is returned as ENGRAM_ECUDA; one of the shim's
 * own calls ends the program with a message.  Not thread-safe.
 */
#ifndef ENGRAM_SHIM_H
#define ENGRAM_SHIM_H

#include "engram_cuda_kernels.h"

extern __typeof__(engram_cpu_hash) engram_shim_hash;
extern __typeof__(engram_cpu_write_slots) engram_shim_write_slots;
extern __typeof__(engram_cpu_lookup) engram_shim_lookup;
extern __typeof__(engram_cpu_lookup_raw) engram_shim_lookup_raw;
extern __typeof__(engram_cpu_decode) engram_shim_decode;
extern __typeof__(engram_cpu_gate) engram_shim_gate;
extern __typeof__(engram_cpu_sp_rows) engram_shim_sp_rows;

struct engram_shim_counts {
	uint64_t misses, rejects;
};
/* engram_cuda_hash_lookup; at most 64 layers. */
enum engram_status engram_shim_hash_lookup(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, const struct engram_rows *rows,
	uint32_t head_begin, uint32_t local_heads, uint16_t *const *outs,
	struct engram_shim_counts *counts, struct engram_error *err);

/* How the next calls read rows and count; all 0 at the start. */
struct engram_shim_options {
	int registered; /* rows in registered host memory, else in the GPU's */
	int descriptor; /* lookups find the rows by a descriptor */
	int no_rejects; /* hash and slot writer get no counter */
	const struct engram_cuda_grid *grid; /* of lookups */
	/* Lookups, raw ones too, through a ring.  Set by ENGRAM_SHIM_RING=host,
	 * hybrid or sieve in the environment, too. */
	enum {
		ENGRAM_SHIM_DIRECT,
		ENGRAM_SHIM_HOST,
		ENGRAM_SHIM_HYBRID,
		ENGRAM_SHIM_SIEVE
	} ring;
	/* Outputs hold nothing beforehand: for initcheck, which then sees
	 * whether one is read, or handed out without being written.  Set by
	 * ENGRAM_SHIM_NO_POISON in the environment, too. */
	int no_poison;
};
extern struct engram_shim_options engram_shim_options;

/* What the last hash or slot writer counted. */
uint64_t engram_shim_rejects(void);

/* In place of the CPU's instruction sets, by their numbers: rows in device
 * memory, rows in registered memory, the latter by a descriptor. */
extern __typeof__(engram_cpu_set_isa) engram_shim_set_isa;
extern __typeof__(engram_isa_name) engram_shim_isa_name;

/* NULL when there is a CUDA device, else why there is none.  A device that
 * does not work ends the program. */
const char *engram_shim_no_device(void);
/* Exits with 77 when there is none. */
void engram_shim_need_device(void);

#endif
