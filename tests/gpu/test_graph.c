/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	test_graph [REPLAYS]		(1000)
 *
 * Slot writer, hash, and for two layers lookup and gate, captured into one
 * CUDA graph in global mode, before any of them has run: a call that is not
 * allowed in a capture fails it.  The graph is replayed with new inputs, and
 * each replay compared with the CPU backend.  Between replays the lookups'
 * descriptors are switched, in stream order and without waiting, between a
 * table in registered host memory and one in device memory.
 *
 * ENGRAM_PROPERTY_SEED is the seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim_call.h"

#include "graph_case.h"

/* Replays that are queued before the results of the first are looked at. */
#define QUEUED 4
#define PAGE   65536

struct device {
	struct addresses at; /* device addresses */
	struct engram_cuda_descriptor *descriptors;
	cudaStream_t stream;
	cudaGraphExec_t graph;
};

/* What a queued replay uses, in pinned memory. */
struct slot {
	struct inputs inputs, after;
	struct results results;
	struct state state;
	int table;
};

static struct constants constants;
static struct table tables[TABLES];
static struct state state; /* the model's */
/* of each table; pinned, and never changed: copies may be under way */
static struct engram_cuda_descriptor (*descriptors)[LAYERS];
static struct slot *slots[QUEUED];

static void *device_alloc(size_t bytes, const void *from)
{
	void *device;

	SHIM_CUDA(cudaMalloc(&device, bytes));
	if (from)
		SHIM_CUDA(cudaMemcpy(device, from, bytes,
				     cudaMemcpyHostToDevice));
	else
		SHIM_CUDA(cudaMemset(device, 0xa5, bytes));
	return device;
}

static void *pinned_alloc(size_t bytes)
{
	void *pinned = NULL;

	SHIM_CUDA(cudaMallocHost(&pinned, bytes));
	memset(pinned, 0, bytes);
	return pinned;
}

static void *page_alloc(size_t bytes)
{
	void *pages = NULL;

	if (posix_memalign(&pages, PAGE, bytes)) {
		fprintf(stderr, "out of memory: %zu bytes\n", bytes);
		exit(1);
	}
	return pages;
}

/* The first table registered where it is, the second copied. */
static void make_tables(struct rng *rng)
{
	size_t bytes = ((size_t)MAX_ROWS * RECORD + PAGE - 1) / PAGE * PAGE;

	descriptors = pinned_alloc(TABLES * sizeof(*descriptors));
	for (int t = 0; t < TABLES; t++) {
		for (int layer = 0; layer < LAYERS; layer++)
			tables[t].records[layer] = page_alloc(bytes);
		make_table(&tables[t], &constants, rng, t == 1);
		for (int layer = 0; layer < LAYERS; layer++) {
			struct engram_cuda_descriptor *d =
				&descriptors[t][layer];
			uint8_t *records = tables[t].records[layer];
			const struct engram_rows *r = &tables[t].rows[layer];
			void *device;

			if (t) {
				device = device_alloc(bytes, records);
			} else {
				SHIM_CUDA(cudaHostRegister(
					records, bytes,
					cudaHostRegisterMapped));
				SHIM_CUDA(cudaHostGetDevicePointer(&device,
								   records, 0));
			}
			d->rows = *r;
			d->generation = (uint64_t)t + 1;
			/* the first row's in the range */
			d->rows.codes = device;
			d->rows.scales = (uint8_t *)device + DIM;
		}
	}
}

static void make_device(struct device *d)
{
	d->at.constants = device_alloc(sizeof(constants), &constants);
	d->at.inputs = device_alloc(sizeof(struct inputs), NULL);
	d->at.results = device_alloc(sizeof(struct results), NULL);
	d->at.state = device_alloc(sizeof(state), &state);
	d->descriptors = device_alloc(sizeof(descriptors[0]), descriptors[0]);
	SHIM_CUDA(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
	/* not ordered with the default stream that the copies were on */
	SHIM_CUDA(cudaDeviceSynchronize());
}

static void need_ok(enum engram_status status, const char *what,
		    const struct engram_error *err)
{
	if (!status)
		return;
	printf("FAIL  capturing %s: %s: %s; %s\n", what,
	       engram_status_symbol(status), err->message, err->fix);
	exit(1);
}

static void enqueue_layer(struct device *d, int layer)
{
	const struct engram_rows *r = &tables[0].rows[layer];
	struct engram_cuda_source source = {
		.rows = {.dtype = r->dtype,
			 .scale_scheme = r->scale_scheme,
			 .dim = r->dim,
			 .block_size = r->block_size,
			 .code_stride_bytes = r->code_stride_bytes,
			 .scale_stride_bytes = r->scale_stride_bytes},
		.descriptor = &d->descriptors[layer],
	};
	struct engram_lookup_args lookup = lookup_args(&d->at, layer);
	struct engram_gate_args gate = gate_args(&d->at, layer);
	struct engram_error err;

	need_ok(engram_cuda_lookup(&source, &lookup,
				   d->at.results->rows[layer][0][0], NULL,
				   d->stream, &err),
		"the lookup", &err);
	need_ok(engram_cuda_gate(&gate, gate_out(&d->at, layer), d->stream,
				 &err),
		"the gate", &err);
}

static void enqueue_all(struct device *d)
{
	struct layer_pointers pointers;
	struct engram_hash_params params = hash_params(&d->at, &pointers);
	struct engram_hash_batch batch = hash_batch(&d->at);
	uint64_t *rejects = &d->at.state->rejects;
	struct engram_error err;

	need_ok(engram_cuda_write_slots(&params, &batch, rejects, d->stream,
					&err),
		"the slot writer", &err);
	need_ok(engram_cuda_hash(&params, &batch, d->at.results->ids[0][0],
				 rejects, d->stream, &err),
		"the hash", &err);
	for (int layer = 0; layer < LAYERS; layer++)
		enqueue_layer(d, layer);
}

/* Only work of the device itself may be in the graph. */
static void check_nodes(cudaGraph_t graph)
{
	cudaGraphNode_t nodes[64];
	size_t count = sizeof(nodes) / sizeof(nodes[0]);

	SHIM_CUDA(cudaGraphGetNodes(graph, nodes, &count));
	printf("%zu nodes in the graph\n", count);
	for (size_t i = 0; i < count; i++) {
		enum cudaGraphNodeType type;

		SHIM_CUDA(cudaGraphNodeGetType(nodes[i], &type));
		if (type == cudaGraphNodeTypeKernel ||
		    type == cudaGraphNodeTypeMemset)
			continue;
		printf("FAIL  node %zu of the graph is of type %d\n", i,
		       (int)type);
		exit(1);
	}
}

static void capture(struct device *d)
{
	cudaGraph_t graph;

	SHIM_CUDA(
		cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeGlobal));
	enqueue_all(d);
	SHIM_CUDA(cudaStreamEndCapture(d->stream, &graph));
	check_nodes(graph);
	SHIM_CUDA(cudaGraphInstantiateWithFlags(&d->graph, graph, 0));
	SHIM_CUDA(cudaGraphDestroy(graph));
}

static void copy(struct device *d, void *to, const void *from, size_t bytes)
{
	SHIM_CUDA(
		cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, d->stream));
}

static void enqueue_replay(struct device *d, struct slot *slot, int table)
{
	copy(d, d->at.inputs, &slot->inputs, sizeof(slot->inputs));
	if (table != slot->table)
		copy(d, d->descriptors, descriptors[table],
		     sizeof(descriptors[table]));
	slot->table = table;
	SHIM_CUDA(cudaGraphLaunch(d->graph, d->stream));
	copy(d, &slot->results, d->at.results, sizeof(slot->results));
	copy(d, &slot->after, d->at.inputs, sizeof(slot->after));
	copy(d, &slot->state, d->at.state, sizeof(slot->state));
}

static int check(const struct slot *slot, long replay)
{
	char why[WHY] = "";

	if (!check_replay(&constants, &tables[slot->table], &slot->inputs,
			  &state, &slot->after, &slot->results, &slot->state,
			  why))
		return 0;
	printf("FAIL  replay %ld, table %d: %s\n", replay, slot->table, why);
	return -1;
}

static int replay(struct device *d, struct rng *rng, long replays)
{
	long switches = 0;
	int table = 0;

	for (long first = 0; first < replays; first += QUEUED) {
		int count = replays - first < QUEUED ? (int)(replays - first)
						     : QUEUED;

		for (int i = 0; i < count; i++) {
			int next = rng_percent(rng, 30) ? !table : table;

			make_inputs(&slots[i]->inputs, rng);
			slots[i]->table = table;
			enqueue_replay(d, slots[i], next);
			switches += next != table;
			table = next;
		}
		SHIM_CUDA(cudaStreamSynchronize(d->stream));
		for (int i = 0; i < count; i++)
			if (check(slots[i], first + i))
				return -1;
	}
	printf("%ld replays as the CPU backend, %ld switches of the table, "
	       "%llu rejects, %llu misses\n",
	       replays, switches, (unsigned long long)state.rejects,
	       (unsigned long long)(state.misses[0] + state.misses[1]));
	return 0;
}

int main(int argc, char **argv)
{
	const char *seed = getenv("ENGRAM_PROPERTY_SEED");
	struct rng rng = {seed ? strtoull(seed, NULL, 10) : 0};
	long replays = argc > 1 ? strtol(argv[1], NULL, 10) : 1000;
	struct device device;

	engram_shim_need_device();
	printf("ENGRAM_PROPERTY_SEED=%llu\n", (unsigned long long)rng.state);
	make_constants(&constants, &rng);
	for (int i = 0; i < SLOTS; i++)
		state.cache[i] = (int32_t)rng_in(&rng, -1, VOCAB / 2);
	make_tables(&rng);
	for (int i = 0; i < QUEUED; i++)
		slots[i] = pinned_alloc(sizeof(*slots[i]));
	make_device(&device);
	capture(&device);
	return replays < 1 || replay(&device, &rng, replays);
}
