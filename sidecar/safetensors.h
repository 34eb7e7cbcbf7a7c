/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file: 8 bytes of length, little-endian, a JSON
 * object of tensors, then the data.  Tensor data is not read here.
 */
#ifndef ENGRAMD_SAFETENSORS_H
#define ENGRAMD_SAFETENSORS_H

#include <stdint.h>

#include "engram_error.h"
#include "engram_segment.h"

#define SAFETENSORS_HEADER_MAX (100u << 20)
#define SAFETENSORS_RANK_MAX   8

struct safetensors_tensor {
	char *name;
	char dtype[16];
	uint32_t rank;
	uint64_t shape[SAFETENSORS_RANK_MAX];
	uint64_t offset; /* of its first byte, from the start of the file */
	uint64_t bytes;
};

struct safetensors {
	struct safetensors_tensor *tensors; /* by offset */
	size_t num_tensors;
	struct engram_segment_source identity; /* without the name */
};

/*
 * Read and check: the header lies in the file and is a JSON object without
 * duplicate names; every tensor lies in the data, has the size that shape and
 * dtype give (unknown dtypes are let through), and overlaps no other.
 * ENGRAM_ECHECKPOINT and system errors name the file and the tensor.
 */
enum engram_status safetensors_read(const char *path, struct safetensors *out,
				    struct engram_error *err);
void safetensors_free(struct safetensors *st);

const struct safetensors_tensor *safetensors_find(const struct safetensors *st,
						  const char *name);

/* The one number of a tensor of dtype F32 or BF16. */
enum engram_status safetensors_factor(const char *path,
				      const struct safetensors_tensor *tensor,
				      float *out, struct engram_error *err);

#endif
