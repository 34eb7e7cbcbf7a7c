/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "setting.h"

#define TOKENS 64

#define CUDA(call) assert_int_equal((call), cudaSuccess)

int setting_make(void **state)
{
	/* memfd is sealed against writing */
	static const struct fake_twist in_shm = {.in_shm = 1};
	const struct fake_twist *twist = *state ? *state : &in_shm;
	struct setting *s = calloc(1, sizeof(*s));
	struct engram_open_params params = {.name = "test"};

	assert_non_null(s);
	fake_table_make(&s->table, twist);
	fake_start(&s->fake, &s->table, fake_serve);
	params.socket = s->fake.path;
	assert_int_equal(engram_open(&params, &s->client), ENGRAM_OK);
	*state = s;
	return 0;
}

int setting_free(void **state)
{
	struct setting *s = *state;

	assert_int_equal(engram_close(s->client), ENGRAM_OK);
	fake_stop(&s->fake);
	assert_int_equal(s->fake.leases, 0);
	fake_table_free(&s->table);
	free(s);
	return 0;
}

engram_cuda_table *setting_attach(struct setting *s, uint32_t rank,
				  uint32_t size,
				  const struct engram_cuda_attach_params *cuda)
{
	struct engram_attach_params params = {
		.table = "demo", .tp_rank = rank, .tp_size = size};
	engram_cuda_table *t;
	enum engram_status status =
		engram_cuda_attach(s->client, &params, cuda, &t);

	if (status)
		fail_msg("attach: %s", engram_last_error()->message);
	if (engram_cuda_wait(t, -1))
		fail_msg("wait: %s", engram_last_error()->message);
	return t;
}

/* On the device and back. */
static void *to_device(const void *from, size_t bytes)
{
	void *to;

	CUDA(cudaMalloc(&to, bytes));
	CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
	return to;
}

static void from_device(void *to, void *from, size_t bytes)
{
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
	CUDA(cudaFree(from));
}

struct sizes {
	uint32_t layers, cols, heads, dim;
};

static struct sizes sizes_of(const engram_cuda_table *t)
{
	struct engram_table_info info;

	assert_int_equal(engram_table_info(engram_cuda_host_table(t), &info),
			 ENGRAM_OK);
	return (struct sizes){info.num_layers, info.num_cols, info.local_heads,
			      info.dim};
}

/* Hash and lookup in one call; `batch` is on the device, `ids` are the CPU's.
 */
static void check_at_once(engram_cuda_table *t,
			  const struct engram_hash_batch *batch,
			  const int32_t *ids)
{
	struct sizes n = sizes_of(t);
	size_t bytes = (size_t)TOKENS * n.heads * n.dim * sizeof(uint16_t);
	size_t width = (size_t)n.layers * n.cols;
	uint16_t *want = malloc(bytes), *got = malloc(bytes), *outs[8];
	int32_t *scratch;

	CUDA(cudaMalloc((void **)&scratch, TOKENS * width * sizeof(*scratch)));
	memset(got, 0xa5, bytes);
	for (uint32_t layer = 0; layer < n.layers; layer++)
		outs[layer] = to_device(got, bytes);
	if (engram_cuda_table_hash_lookup(t, batch, scratch, outs, NULL, NULL))
		fail_msg("hash and lookup: %s", engram_last_error()->message);
	for (uint32_t layer = 0; layer < n.layers; layer++) {
		assert_int_equal(engram_lookup(engram_cuda_host_table(t), layer,
					       ids + (size_t)layer * n.cols,
					       (int64_t)width, 1, TOKENS, want,
					       NULL),
				 ENGRAM_OK);
		from_device(got, outs[layer], bytes);
		assert_memory_equal(got, want, bytes);
	}
	CUDA(cudaFree(scratch));
	free(want);
	free(got);
}

/* Ids of one request of TOKENS, by the handle and by the CPU: equal. */
static int32_t *hashed(engram_cuda_table *t)
{
	struct sizes n = sizes_of(t);
	size_t count = (size_t)TOKENS * n.layers * n.cols;
	int32_t *ids = malloc(count * sizeof(*ids));
	int32_t *got = malloc(count * sizeof(*got)), *device;
	int32_t tokens[TOKENS], starts[2] = {0, TOKENS};
	int64_t positions[TOKENS];
	struct engram_hash_batch batch = {
		.num_tokens = TOKENS,
		.input_ids = tokens,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};

	for (int i = 0; i < TOKENS; i++) {
		tokens[i] = i * 7 % FAKE_VOCAB;
		positions[i] = i;
	}
	assert_int_equal(engram_hash(engram_cuda_host_table(t), &batch, ids),
			 ENGRAM_OK);
	batch.input_ids = to_device(tokens, sizeof(tokens));
	batch.positions = to_device(positions, sizeof(positions));
	batch.query_start_loc = to_device(starts, sizeof(starts));
	device = to_device(got, count * sizeof(*got));
	if (engram_cuda_table_hash(t, &batch, device, NULL))
		fail_msg("hash: %s", engram_last_error()->message);
	from_device(got, device, count * sizeof(*got));
	check_at_once(t, &batch, ids);
	CUDA(cudaFree((void *)(uintptr_t)batch.input_ids));
	CUDA(cudaFree((void *)(uintptr_t)batch.positions));
	CUDA(cudaFree((void *)(uintptr_t)batch.query_start_loc));
	assert_memory_equal(got, ids, count * sizeof(*got));
	free(got);
	return ids;
}

static void check_layer(engram_cuda_table *t, uint32_t layer,
			const int32_t *ids, int32_t *device_ids)
{
	struct sizes n = sizes_of(t);
	size_t bytes = (size_t)TOKENS * n.heads * n.dim * sizeof(uint16_t);
	uint16_t *want = malloc(bytes), *got = malloc(bytes), *device;
	size_t at = (size_t)layer * n.cols;
	struct engram_cuda_lookup_params params = {
		.ids = device_ids + at,
		.ids_token_stride = (int64_t)n.layers * n.cols,
		.ids_head_stride = 1,
		.num_tokens = TOKENS,
	};

	assert_int_equal(engram_lookup(engram_cuda_host_table(t), layer,
				       ids + at, params.ids_token_stride, 1,
				       TOKENS, want, NULL),
			 ENGRAM_OK);
	memset(got, 0xa5, bytes);
	device = to_device(got, bytes);
	if (engram_cuda_table_lookup(t, layer, &params, device, NULL))
		fail_msg("lookup: %s", engram_last_error()->message);
	from_device(got, device, bytes);
	assert_memory_equal(got, want, bytes);
	free(want);
	free(got);
}

/* Rows of these ids, all layers', but that one id of each is nobody's. */
static void check_rows_of(engram_cuda_table *t, int32_t *ids)
{
	struct sizes n = sizes_of(t);
	size_t bytes = (size_t)TOKENS * n.layers * n.cols * sizeof(int32_t);
	struct engram_cuda_counters before, after;
	int32_t *device_ids;

	assert_int_equal(engram_cuda_counters(t, NULL, &before), ENGRAM_OK);
	for (uint32_t layer = 0; layer < n.layers; layer++) {
		struct engram_layer_info info;

		engram_layer_info(engram_cuda_host_table(t), layer, &info);
		/* the first head of this rank */
		ids[(size_t)layer * n.cols + info.shard.head_begin] = -1;
	}
	device_ids = to_device(ids, bytes);
	for (uint32_t layer = 0; layer < n.layers; layer++)
		check_layer(t, layer, ids, device_ids);
	CUDA(cudaFree(device_ids));
	assert_int_equal(engram_cuda_counters(t, NULL, &after), ENGRAM_OK);
	assert_int_equal(after.misses - before.misses, n.layers);
	assert_int_equal(after.rejects, 0);
}

void check_use(engram_cuda_table *t)
{
	int32_t *ids = hashed(t);

	check_rows_of(t, ids);
	free(ids);
}

/* All heads ask for the rows of their rank's first head. */
void check_rows(engram_cuda_table *t)
{
	struct sizes n = sizes_of(t);
	int32_t *ids =
		malloc((size_t)TOKENS * n.layers * n.cols * sizeof(*ids));
	struct engram_layer_info info;

	assert_int_equal(engram_layer_info(engram_cuda_host_table(t), 0, &info),
			 ENGRAM_OK);
	for (size_t i = 0; i < (size_t)TOKENS * n.layers * n.cols; i++)
		ids[i] = (int32_t)(info.rows.row_begin + (int64_t)(i % 40));
	check_rows_of(t, ids);
	free(ids);
}

void permissions(const void *address, char out[8])
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	assert_non_null(maps);
	strcpy(out, "none");
	while (fgets(line, sizeof(line), maps)) {
		unsigned long begin, end;
		char what[5];

		if (sscanf(line, "%lx-%lx %4s", &begin, &end, what) == 3 &&
		    begin <= (uintptr_t)address && (uintptr_t)address < end)
			strcpy(out, what);
	}
	fclose(maps);
}
