/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_reader.c on a GPU (or on the fake one): the lookups of all layers are
 * captured as one graph when the table is attached, and replayed for each step,
 * across generations and restarts of engramd.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engram_cuda.h"
#include "reader.h"

#define CUDA(call)  check_cuda(call, #call)
#define STEP_TOKENS 32
#define LAYERS_MAX  8

/* A layer's ids and rows. */
struct layer {
	int32_t id;
	uint32_t dim;
	int64_t total_rows;
	int32_t *ids, *device_ids;
	struct engram_raw_out out, device_out;
};

static engram_client *client;
static engram_cuda_table *table;
static cudaStream_t stream;
static struct layer layers[LAYERS_MAX];
static uint32_t num_layers, step_ids, seed;
static bool parked;

static void check_cuda(cudaError_t error, const char *call)
{
	if (!error)
		return;
	fprintf(stderr, "row_reader_cuda: %s: %s\n", call,
		cudaGetErrorString(error));
	atomic_fetch_add(&stats->failures, 1);
	exit(1);
}

static const engram_table *host_table(void)
{
	return table ? engram_cuda_host_table(table) : NULL;
}

/* ---- a step ---- */

static void launch(void)
{
	for (uint32_t i = 0; i < num_layers; i++) {
		const struct engram_cuda_lookup_params lookup = {
			.ids = layers[i].device_ids,
			.ids_token_stride = step_ids / STEP_TOKENS,
			.ids_head_stride = 1,
			.num_tokens = STEP_TOKENS,
		};

		reader_note(engram_cuda_table_lookup_raw(
			table, i, &lookup, &layers[i].device_out, stream));
	}
}

#ifdef FAKE_CUDA
static void capture(void)
{
}

static void replay(void)
{
	launch();
}

static void forget_graph(void)
{
}
#else
static cudaGraphExec_t graph;

static void capture(void)
{
	cudaGraph_t captured;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	launch();
	CUDA(cudaStreamEndCapture(stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
}

static void replay(void)
{
	CUDA(cudaGraphLaunch(graph, stream));
}

static void forget_graph(void)
{
	if (graph)
		CUDA(cudaGraphExecDestroy(graph));
	graph = NULL;
}
#endif

static void feed(struct layer *l, uint64_t *state)
{
	for (uint32_t i = 0; i < step_ids; i++)
		l->ids[i] = (int32_t)(reader_random(state) %
				      (uint64_t)l->total_rows);
	CUDA(cudaMemcpyAsync(l->device_ids, l->ids, step_ids * sizeof(*l->ids),
			     cudaMemcpyHostToDevice, stream));
}

static void fetch(const struct layer *l)
{
	const size_t codes = (size_t)step_ids * l->dim;

	CUDA(cudaMemcpyAsync(l->out.codes, l->device_out.codes, codes,
			     cudaMemcpyDeviceToHost, stream));
	CUDA(cudaMemcpyAsync(l->out.scales, l->device_out.scales, codes / 32,
			     cudaMemcpyDeviceToHost, stream));
}

static void check(const struct layer *l)
{
	for (uint32_t i = 0; i < step_ids; i++)
		reader_check_row(l->out.codes + (size_t)i * l->dim,
				 l->out.scales + (size_t)i * (l->dim / 32),
				 l->id, l->ids[i], l->dim, seed);
	atomic_fetch_add(&stats->rows, step_ids);
}

static void step(uint64_t *state)
{
	for (uint32_t i = 0; i < num_layers; i++)
		feed(&layers[i], state);
	replay();
	for (uint32_t i = 0; i < num_layers; i++)
		fetch(&layers[i]);
	CUDA(cudaStreamSynchronize(stream));
	for (uint32_t i = 0; i < num_layers; i++)
		check(&layers[i]);
	atomic_fetch_or(&stats->seeds, UINT64_C(1) << seed);
	atomic_fetch_add(&stats->steps, 1);
}

/* ---- attaching ---- */

static void free_layers(void)
{
	for (uint32_t i = 0; i < num_layers; i++) {
		struct layer *l = &layers[i];

		free(l->ids);
		free(l->out.codes);
		free(l->out.scales);
		CUDA(cudaFree(l->device_ids));
		CUDA(cudaFree(l->device_out.codes));
		CUDA(cudaFree(l->device_out.scales));
		*l = (struct layer){0};
	}
	num_layers = 0;
}

static void *take(size_t bytes)
{
	void *memory = malloc(bytes);

	if (!memory)
		exit(1);
	return memory;
}

static void make_layer(struct layer *l, const struct engram_layer_info *info)
{
	const size_t codes = (size_t)step_ids * info->rows.dim;

	l->id = info->layer_id;
	l->dim = info->rows.dim;
	l->total_rows = (int64_t)info->total_rows;
	l->ids = take(step_ids * sizeof(*l->ids));
	l->out.codes = take(codes);
	l->out.scales = take(codes / 32);
	CUDA(cudaMalloc((void **)&l->device_ids, step_ids * sizeof(*l->ids)));
	CUDA(cudaMalloc((void **)&l->device_out.codes, codes));
	CUDA(cudaMalloc((void **)&l->device_out.scales, codes / 32));
}

static void make_layers(void)
{
	struct engram_table_info info;
	struct engram_layer_info layer;

	reader_note(engram_table_info(host_table(), &info));
	step_ids = STEP_TOKENS * info.num_cols;
	for (uint32_t i = 0; i < info.num_layers && i < LAYERS_MAX; i++) {
		reader_note(engram_layer_info(host_table(), i, &layer));
		make_layer(&layers[num_layers++], &layer);
	}
}

static void let_go(void)
{
	CUDA(cudaStreamSynchronize(stream));
	forget_graph();
	free_layers();
	reader_note(engram_cuda_detach(table));
	reader_note(engram_close(client));
	table = NULL;
	client = NULL;
	parked = false;
}

static void take_hold(void)
{
	const struct engram_open_params open = {
		.socket = reader_socket, .call_timeout_ms = READER_CALL_MS};
	const struct engram_attach_params attach = {.table = reader_table};
	enum engram_status status = engram_open(&open, &client);

	if (!status)
		status = engram_cuda_attach(client, &attach, NULL, &table);
	if (!status)
		status = engram_cuda_wait(table, -1);
	reader_note(status);
	if (status || !reader_seed_of(host_table(), &seed)) {
		let_go();
		reader_pause_ms(5);
		return;
	}
	make_layers();
	capture();
	atomic_fetch_add(&stats->attaches, 1);
}

/* ---- moving ---- */

static void park(void)
{
	enum engram_status status = engram_cuda_table_park(table, stream);

	/* Unloaded, or reloaded in a way that waits for all to go. */
	if (status == ENGRAM_EUNSUPPORTED) {
		let_go();
		return;
	}
	reader_note(status);
	parked = !status;
	if (parked)
		atomic_fetch_add(&stats->parks, 1);
}

static void refresh(uint64_t generation)
{
	enum engram_status status =
		engram_cuda_table_refresh(table, generation, stream);

	reader_note(status);
	if (status)
		return;
	parked = false;
	if (reader_seed_of(host_table(), &seed))
		atomic_fetch_add(&stats->refreshes, 1);
}

/* Between two steps. */
static void keep_up(int64_t *since_ms)
{
	struct engram_table_info info;
	enum engram_status status;
	uint64_t generation;

	reader_note(engram_table_info(host_table(), &info));
	if (!parked && engram_table_poll(host_table()) == info.generation) {
		*since_ms = 0;
		return;
	}
	status = engram_cuda_table_prepare(table, &generation);
	if (!status && generation)
		refresh(generation);
	else if (!parked && (status == ENGRAM_EDRAINING ||
			     reader_withdrawn(host_table(), since_ms)))
		park();
	else if (status == ENGRAM_ENOTFOUND)
		let_go();
	else
		reader_note(status);
}

int main(int argc, char **argv)
{
	uint64_t state = (uint64_t)getpid() << 32;
	int64_t since_ms = 0;

	if (!reader_begin(argc, argv))
		return 2;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	while (!atomic_load(&stats->end)) {
		if (!table)
			take_hold();
		else
			keep_up(&since_ms);
		if (table && !parked) {
			step(&state);
			continue;
		}
		atomic_fetch_add(&stats->idle, 1);
		reader_pause_ms(1);
	}
	let_go();
	return 0;
}
