/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash four tokens and read the rows of the first layer, on a GPU.
 *	cc example_cuda.c $(pkg-config --cflags --libs engram_cuda) \
 *		-I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart \
 *		-o example_cuda
 *	./example_cuda TABLE
 */
#include <cuda_runtime_api.h>
#include <engram_cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS 4

/* Managed memory is the shortest that host and GPU both use; an engine has its
 * ids and rows in device memory. */
struct arrays {
	int32_t tokens[TOKENS], starts[2];
	int64_t positions[TOKENS];
	int32_t *ids;	/* [TOKENS, num_layers, num_cols] */
	uint16_t *rows; /* bf16 [TOKENS, local_heads, dim] */
};

static int cuda_failed(cudaError_t code, const char *what)
{
	if (code)
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
	return code != cudaSuccess;
}

static int engram_failed(enum engram_status status)
{
	const struct engram_error *err = engram_last_error();

	if (status)
		fprintf(stderr, "%s; %s\n", err->message, err->fix);
	return status != ENGRAM_OK;
}

/* The table is registered in the background: show how far it is. */
static enum engram_status wait_for(engram_cuda_table *table)
{
	struct engram_cuda_progress progress;
	enum engram_status status;

	do {
		status = engram_cuda_wait(table, 500);
		if (!engram_cuda_progress(table, &progress))
			fprintf(stderr, "%.2f of %.2f GiB in %.1f s\n",
				(double)progress.done_bytes / (1 << 30),
				(double)progress.total_bytes / (1 << 30),
				progress.seconds);
	} while (status == ENGRAM_ETIMEDOUT);
	return status;
}

static struct arrays *allocate(const struct engram_table_info *info)
{
	size_t ids = (size_t)TOKENS * info->num_layers * info->num_cols;
	size_t rows = (size_t)TOKENS * info->local_heads * info->dim;
	struct arrays *a;

	if (cuda_failed(cudaMallocManaged((void **)&a,
					  sizeof(*a) + ids * sizeof(*a->ids) +
						  rows * sizeof(*a->rows),
					  cudaMemAttachGlobal),
			"cudaMallocManaged"))
		return NULL;
	a->ids = (int32_t *)(a + 1);
	a->rows = (uint16_t *)(a->ids + ids);
	for (int i = 0; i < TOKENS; i++) {
		a->tokens[i] = i + 1;
		a->positions[i] = i;
	}
	a->starts[0] = 0;
	a->starts[1] = TOKENS;
	return a;
}

static int hash_and_look_up(engram_cuda_table *table,
			    const struct engram_table_info *info,
			    const struct arrays *a, cudaStream_t stream)
{
	/* taken now: not every system lets the host touch managed memory
	 * while a kernel runs */
	int32_t *ids = a->ids;
	uint16_t *rows = a->rows;
	const struct engram_hash_batch batch = {
		.num_tokens = TOKENS,
		.input_ids = a->tokens,
		.input_stride = 1,
		.positions = a->positions,
		.position_stride = 1,
		.query_start_loc = a->starts,
		.query_stride = 1,
		.num_requests = 1,
	};
	const struct engram_cuda_lookup_params lookup = {
		.ids = ids,
		.ids_token_stride = (int64_t)info->num_layers * info->num_cols,
		.ids_head_stride = 1,
		.num_tokens = TOKENS,
	};

	return engram_failed(
		       engram_cuda_table_hash(table, &batch, ids, stream)) ||
	       engram_failed(engram_cuda_table_lookup(table, 0, &lookup, rows,
						      stream)) ||
	       cuda_failed(cudaStreamSynchronize(stream), "the kernels");
}

static int run(engram_cuda_table *table)
{
	struct engram_table_info info;
	cudaStream_t stream;
	struct arrays *a;
	int failed;

	if (engram_failed(wait_for(table)) ||
	    engram_failed(
		    engram_table_info(engram_cuda_host_table(table), &info)) ||
	    cuda_failed(cudaStreamCreate(&stream), "cudaStreamCreate"))
		return 1;
	a = allocate(&info);
	failed = !a || hash_and_look_up(table, &info, a, stream);
	if (!failed)
		printf("%s generation %llu: token 3 reads row %d, "
		       "bf16 %04x %04x\n",
		       info.name, (unsigned long long)info.generation,
		       a->ids[3 * info.num_layers * info.num_cols],
		       a->rows[3 * info.local_heads * info.dim],
		       a->rows[3 * info.local_heads * info.dim + 1]);
	cudaFree(a);
	cudaStreamDestroy(stream);
	return failed;
}

int main(int argc, char **argv)
{
	const struct engram_attach_params params = {.table = argc > 1 ? argv[1]
								      : "demo"};
	engram_cuda_table *table = NULL;
	engram_client *client = NULL;
	int failed;

	/* NULL: the current device, and the rows where they are */
	failed = engram_failed(engram_open(NULL, &client)) ||
		 engram_failed(
			 engram_cuda_attach(client, &params, NULL, &table)) ||
		 run(table);
	/* the stream was synchronised: nothing reads the table any more */
	engram_cuda_detach(table);
	engram_close(client);
	return failed;
}
