/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "table.h"

/*
 * One allocation for all that kernels read besides the rows, filled from a
 * copy of it on the host.
 */
struct layout {
	char *host; /* NULL: sizes are being added up */
	char *device;
	size_t size;
};

/* Room for `bytes` with these contents; where it will be on the device. */
static void *place(struct layout *l, const void *contents, size_t bytes)
{
	size_t at = (l->size + 15) / 16 * 16;

	l->size = at + bytes;
	if (l->host && bytes)
		memcpy(l->host + at, contents, bytes);
	return l->device ? l->device + at : NULL;
}

static void place_hash(struct engram_cuda_table *t,
		       const struct engram_hash_params *from, struct layout *l)
{
	size_t cols = (size_t)(from->max_ngram - from->min_ngram + 1) *
		      from->num_heads;

	t->hash = *from;
	t->hash.multipliers = t->multipliers;
	t->hash.primes = t->primes;
	t->hash.offsets = t->offsets;
	for (uint32_t i = 0; i < from->num_layers; i++) {
		t->multipliers[i] =
			place(l, from->multipliers[i],
			      from->max_ngram * sizeof(**from->multipliers));
		t->primes[i] = place(l, from->primes[i],
				     cols * sizeof(**from->primes));
		t->offsets[i] = place(l, from->offsets[i],
				      cols * sizeof(**from->offsets));
	}
	t->hash.token_map =
		place(l, from->token_map,
		      (size_t)from->token_map_len * sizeof(*from->token_map));
}

static void place_all(struct engram_cuda_table *t,
		      const struct engram_hash_params *hash, struct layout *l)
{
	const struct cuda_counters zeros = {0};
	struct engram_table_info info = {0};

	t->counters = place(l, &zeros, sizeof(zeros));
	engram_table_info(t->table, &info);
	for (uint32_t i = 0; i < t->num_layers; i++) {
		struct engram_cuda_descriptor descriptor = {
			.rows = t->sources[i].rows,
			.generation = info.generation,
			.epoch = t->epoch,
		};

		t->sources[i].descriptor =
			place(l, &descriptor, sizeof(descriptor));
	}
	if (t->can_hash)
		place_hash(t, hash, l);
}

enum engram_status cuda_upload(void *device, const void *host, uint64_t bytes,
			       struct engram_error *err)
{
	enum engram_status status;
	cudaStream_t stream;

	status = engram_cuda_status(
		cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
		"cudaStreamCreateWithFlags", err);
	if (status)
		return status;
	status = engram_cuda_status(cudaMemcpyAsync(device, host, bytes,
						    cudaMemcpyHostToDevice,
						    stream),
				    "cudaMemcpyAsync", err);
	if (!status)
		status = engram_cuda_status(cudaStreamSynchronize(stream),
					    "copying to the device: "
					    "cudaStreamSynchronize",
					    err);
	engram_cuda_ignore(cudaStreamDestroy(stream));
	return status;
}

enum engram_status cuda_block_make(struct engram_cuda_table *t,
				   struct engram_error *err)
{
	struct engram_hash_params hash = {0};
	struct layout layout = {0};
	enum engram_status status;
	size_t size;

	/* A table without a token map looks rows up all the same. */
	t->can_hash = engram_hash_params(t->table, &hash) == ENGRAM_OK;
	place_all(t, &hash, &layout);
	size = layout.size;
	layout = (struct layout){.host = calloc(1, size)};
	if (!layout.host)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for %zu bytes of hash "
					"parameters",
					size);
	t->block_bytes = size;
	status = engram_cuda_status(cudaMalloc(&t->block, size), "cudaMalloc",
				    err);
	if (!status) {
		layout.device = t->block;
		place_all(t, &hash, &layout);
		status = cuda_upload(t->block, layout.host, size, err);
		t->device_bytes += size;
		if (status)
			cuda_block_free(t);
	}
	free(layout.host);
	return status;
}

void cuda_block_free(struct engram_cuda_table *t)
{
	if (t->block)
		engram_cuda_ignore(cudaFree(t->block));
	t->block = NULL;
}
