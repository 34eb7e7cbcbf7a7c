/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel a lookup takes, and how large a grid. */
#ifndef ENGRAM_CUDA_LOOKUP_PLAN_H
#define ENGRAM_CUDA_LOOKUP_PLAN_H

#include "lookup.cuh"

enum path {
	PATH_256, /* dim 256 fp8, blocks of 32 */
	PATH_UNITS,
	PATH_ELEMENTS
};

struct lookup_plan {
	enum path path;
	int align; /* of units: 8, 4 or 1 */
	uint32_t units, tile_rows;
};

/* By shapes and alignments. */
struct lookup_plan lookup_make_plan(const struct lookup_task *task);

/* For so many tiles, one a warp: the caller's wish, or the default. */
enum engram_status lookup_blocks(const struct engram_cuda_grid *grid,
				 int resident, int64_t tiles, unsigned int *out,
				 struct engram_error *err);

/* As engram_check_lookup; with a descriptor, what is where is not known here.
 */
enum engram_status lookup_check(const struct engram_cuda_source *source,
				const struct engram_lookup_args *args,
				const uint16_t *out, struct engram_error *err);

struct lookup_task lookup_task_of(const struct engram_cuda_source *source,
				  const struct engram_lookup_args *args);

/* lookup.cu: a lookup of checked rows in device memory. */
enum engram_status lookup_resident(struct lookup_task *task,
				   engram_stream stream,
				   struct engram_error *err);

#endif
