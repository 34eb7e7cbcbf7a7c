/* SPDX-License-Identifier: Apache-2.0 */
/* A whole layer on a GPU against a model in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda_test.h"
#include "engram_cuda_layer.h"
#include "layer_model.h"

#define LIMIT 1e-2 /* relative error */

/* One rank: the layer, a batch, and the device memory of both. */
struct part {
	struct engram_cuda_layer layer;
	struct engram_cuda_layer_batch batch;
	engram_wkv *wkv;
	struct engram_linear ours; /* what the callback calls */
	int calls;
	uint64_t *misses;
	cudaStream_t stream;
	size_t gate_bytes; /* of hidden and out */
};

struct device_model {
	const struct layer_model *m;
	uint8_t *records, *codes, *scales, *mask;
	uint16_t *bf16, *q_weight, *k_weight;
	int32_t *ids;
	struct part parts[LOOPBACK_MAX];
	int callback, in_place;
};

static size_t gate_of(const struct layer_model *m)
{
	return (size_t)m->s.hc_mult * m->s.dim;
}

/* An engine's own product: here ours, with a look at what comes. */
static enum engram_status callback(void *context, const uint16_t *in,
				   int64_t num_tokens, uint16_t *out,
				   engram_stream stream,
				   struct engram_error *err)
{
	struct part *part = context;

	part->calls++;
	if ((uintptr_t)in % 256 || (uintptr_t)out % 256 || num_tokens < 1)
		return engram_error_set(err, ENGRAM_EINTERNAL, "%p %p %lld",
					(const void *)in, (void *)out,
					(long long)num_tokens);
	return part->ours.forward(part->ours.context, in, num_tokens, out,
				  stream, err);
}

static void open_wkv(struct device_model *d, struct part *part)
{
	const struct layer_model *m = d->m;
	struct engram_wkv_params params = {
		.format = m->s.fp8 ? ENGRAM_WKV_FP8_BLOCK32 : ENGRAM_WKV_BF16,
		.weight = m->s.fp8 ? (void *)d->codes : (void *)d->bf16,
		.scales = m->s.fp8 ? d->scales : NULL,
		.in_features = m->in,
		.out_features = m->out,
	};
	struct engram_error err;

	OK(engram_wkv_create(&params, &part->wkv, &err), &err);
	OK(engram_wkv_prepare(part->wkv, layer_model_share(m), &err), &err);
	part->ours = engram_wkv_linear(part->wkv);
	part->layer.wkv = part->ours;
	if (d->callback)
		part->layer.wkv = (struct engram_linear){.forward = callback,
							 .context = part};
}

static void open_layer(struct device_model *d, uint32_t rank)
{
	struct part *part = &d->parts[rank];
	const struct layer_model *m = d->m;
	uint32_t local = (m->s.heads + m->s.size - 1) / m->s.size;

	part->misses = cuda_room(sizeof(*part->misses));
	CUDA(cudaMemset(part->misses, 0, sizeof(*part->misses)));
	part->layer = (struct engram_cuda_layer){
		.source = {.rows = layer_model_rows(m, d->records),
			   .resident = 1},
		.head_begin = rank * local,
		.local_heads = local,
		.total_heads = m->s.heads,
		.misses = part->misses,
		.sequence_parallel = m->s.sequence_parallel,
		.hc_mult = m->s.hc_mult,
		.dim = m->s.dim,
		.q_weight = d->q_weight,
		.k_weight = d->k_weight,
		.q_stride = {m->s.dim, 1},
		.k_stride = {m->s.dim, 1},
		.eps = LAYER_EPS,
		.clamp = LAYER_CLAMP,
	};
	open_wkv(d, part);
}

static void set_hidden(struct device_model *d, uint32_t rank)
{
	struct part *part = &d->parts[rank];
	size_t first = (size_t)layer_model_first(d->m, rank) * gate_of(d->m);

	CUDA(cudaMemcpy((void *)part->batch.hidden, d->m->hidden + first,
			part->gate_bytes, cudaMemcpyHostToDevice));
	if (!d->in_place)
		CUDA(cudaMemset(part->batch.out, 0xa5, part->gate_bytes));
}

static void open_batch(struct device_model *d, uint32_t rank)
{
	struct part *part = &d->parts[rank];
	const struct layer_model *m = d->m;
	struct engram_cuda_layer alike = part->layer;
	struct engram_comm comm = {.rank = rank, .size = m->s.size};
	uint16_t *hidden;

	part->gate_bytes =
		(size_t)layer_model_share(m) * gate_of(m) * sizeof(*hidden);
	hidden = cuda_room(part->gate_bytes);
	part->batch = (struct engram_cuda_layer_batch){
		.num_tokens = m->s.tokens,
		.ids = d->ids,
		.ids_token_stride = m->s.heads,
		.ids_head_stride = 1,
		.token_mask = d->mask,
		.mask_stride = 1,
		.hidden = hidden,
		.hidden_stride = {(int64_t)gate_of(m), m->s.dim, 1},
		.out = d->in_place ? hidden : cuda_room(part->gate_bytes),
		.out_stride = {(int64_t)gate_of(m), m->s.dim, 1},
	};
	alike.comm = &comm;
	part->batch.workspace_bytes =
		engram_cuda_layer_workspace(&alike, m->s.tokens);
	assert_true(part->batch.workspace_bytes > 0);
	part->batch.workspace = cuda_room(part->batch.workspace_bytes);
	CUDA(cudaStreamCreateWithFlags(&part->stream, cudaStreamNonBlocking));
	set_hidden(d, rank);
}

static void device_open(struct device_model *d, const struct layer_model *m)
{
	size_t weights = (size_t)m->in * m->out;
	size_t scales = ((size_t)m->in + 31) / 32 * ((m->out + 31) / 32);

	d->m = m;
	d->records = cuda_copy(m->records, (size_t)m->table_rows * m->record);
	d->codes = cuda_copy(m->codes, weights);
	d->scales = cuda_copy(m->scales, scales);
	d->bf16 = cuda_copy(m->bf16, weights * sizeof(*m->bf16));
	d->q_weight = cuda_copy(m->q_weight, gate_of(m) * sizeof(uint16_t));
	d->k_weight = cuda_copy(m->k_weight, gate_of(m) * sizeof(uint16_t));
	d->ids = cuda_copy(m->ids,
			   (size_t)m->s.tokens * m->s.heads * sizeof(*m->ids));
	d->mask = cuda_copy(m->mask, (size_t)m->s.tokens);
	for (uint32_t rank = 0; rank < m->s.size; rank++) {
		open_layer(d, rank);
		open_batch(d, rank);
	}
	CUDA(cudaDeviceSynchronize());
}

static void device_close(struct device_model *d)
{
	for (uint32_t rank = 0; rank < d->m->s.size; rank++) {
		struct part *part = &d->parts[rank];

		engram_wkv_destroy(part->wkv);
		CUDA(cudaFree(part->misses));
		CUDA(cudaFree(part->batch.workspace));
		CUDA(cudaFree((void *)part->batch.hidden));
		if (!d->in_place)
			CUDA(cudaFree(part->batch.out));
		CUDA(cudaStreamDestroy(part->stream));
	}
	CUDA(cudaFree(d->records));
	CUDA(cudaFree(d->codes));
	CUDA(cudaFree(d->scales));
	CUDA(cudaFree(d->bf16));
	CUDA(cudaFree(d->q_weight));
	CUDA(cudaFree(d->k_weight));
	CUDA(cudaFree(d->ids));
	CUDA(cudaFree(d->mask));
}

/* What the ranks made of the model's batch; a NaN fails, too. */
static void check_result(const struct device_model *d, const char *what)
{
	const struct layer_model *m = d->m;
	struct layer_error sum = {0};
	double out, effect;

	for (uint32_t rank = 0; rank < m->s.size; rank++) {
		const struct part *part = &d->parts[rank];
		uint16_t *got = cuda_fetch(part->batch.out, part->gate_bytes);
		int64_t changed = layer_model_compare(m, rank, got, &sum);

		if (changed)
			fail_msg("%s: rank %u: %lld elements of masked or "
				 "padding tokens changed",
				 what, rank, (long long)changed);
		free(got);
	}
	assert_true(sum.effect > sum.total / 100);
	out = sqrt(sum.diff / sum.total);
	effect = sqrt(sum.diff / sum.effect);
	print_message("%s: %u ranks, %lld tokens, %u -> %u, sp %d, fp8 %d: "
		      "relative error %.2e, of what was added %.2e\n",
		      what, m->s.size, (long long)m->s.tokens, m->in, m->out,
		      m->s.sequence_parallel, m->s.fp8, out, effect);
	if (!(out < LIMIT) || !(effect < LIMIT))
		fail_msg("%s: not within %g", what, LIMIT);
}

static void check_misses(const struct device_model *d, uint64_t batches)
{
	uint64_t all = 0;

	for (uint32_t rank = 0; rank < d->m->s.size; rank++) {
		uint64_t *misses =
			cuda_fetch(d->parts[rank].misses, sizeof(*misses));

		all += *misses;
		free(misses);
	}
	assert_int_equal(all, batches * d->m->misses);
}

static enum engram_status run_rank(const struct engram_comm *comm, void *arg,
				   struct engram_error *err)
{
	struct device_model *d = arg;
	struct part *part = &d->parts[comm->rank];
	struct engram_cuda_layer layer = part->layer;
	enum engram_status status;

	if (comm->size > 1) /* a single rank has none */
		layer.comm = comm;
	status = engram_cuda_layer_forward(&layer, &part->batch, part->stream,
					   err);
	CUDA(cudaStreamSynchronize(part->stream));
	return status;
}

static void check_shape(const struct layer_shape *shape, int by_callback,
			int in_place, const char *what)
{
	struct device_model d = {.callback = by_callback, .in_place = in_place};
	struct loopback_result results[LOOPBACK_MAX];
	struct loopback_params params = {.size = shape->size};
	struct loopback_cuda lo;
	struct layer_model m;

	layer_model_open(&m, shape);
	layer_model_batch(&m, 1);
	loopback_cuda_open(&lo, shape->size);
	params.ops = &lo.ops;
	device_open(&d, &m);
	loopback_run(&params, run_rank, &d, results);
	for (uint32_t rank = 0; rank < shape->size; rank++) {
		if (results[rank].status)
			fail_msg("%s: rank %u: %s", what, rank,
				 results[rank].err.message);
		assert_int_equal(d.parts[rank].calls, by_callback);
	}
	check_result(&d, what);
	check_misses(&d, 1);
	device_close(&d);
	loopback_cuda_close(&lo);
	layer_model_close(&m);
}

static void test_small(void **state)
{
	struct layer_shape s = {
		.heads = 5, .row_dim = 32, .hc_mult = 2, .dim = 96};

	(void)state;
	for (s.size = 1; s.size <= 4; s.size++)
		for (s.sequence_parallel = 0; s.sequence_parallel < 2;
		     s.sequence_parallel++)
			for (s.fp8 = 0; s.fp8 < 2; s.fp8++) {
				s.tokens = 13;
				check_shape(&s, 0, s.fp8, "small");
				s.tokens = 1; /* some ranks have none */
				check_shape(&s, 1, !s.fp8, "callback");
			}
}

/* Blocks of the weight that end early, and an odd number of features. */
static void test_odd(void **state)
{
	struct layer_shape s = {.size = 2,
				.heads = 3,
				.row_dim = 32,
				.hc_mult = 2,
				.dim = 51,
				.tokens = 9};

	(void)state;
	for (s.fp8 = 0; s.fp8 < 2; s.fp8++)
		check_shape(&s, 0, 0, "odd");
}

static void test_released(void **state)
{
	struct layer_shape s = {.size = 1,
				.heads = 24,
				.row_dim = 256,
				.hc_mult = 4,
				.dim = 5120,
				.tokens = 3,
				.fp8 = 1};

	(void)state;
	check_shape(&s, 0, 0, "released");
	s.size = 4;
	s.sequence_parallel = 1;
	s.fp8 = 0;
	check_shape(&s, 0, 0, "released");
}

/* ---- graphs ---- */

/* Ranks one after the other on one stream, so that a graph can hold them all:
 * each has fetched when the first gathers. */
struct peek {
	const struct device_model *d;
	uint32_t rank;
};

static enum engram_status peek_all_gather(void *context, const void *send,
					  void *recv, size_t bytes,
					  engram_stream stream,
					  struct engram_error *err)
{
	const struct peek *peek = context;
	const struct part *parts = peek->d->parts;

	/* what is sent begins the workspace */
	if (send != parts[peek->rank].batch.workspace)
		return engram_error_set(err, ENGRAM_EINTERNAL,
					"the rows are not where they were");
	for (uint32_t from = 0; from < peek->d->m->s.size; from++)
		CUDA(cudaMemcpyAsync((char *)recv + from * bytes,
				     parts[from].batch.workspace, bytes,
				     cudaMemcpyDeviceToDevice, stream));
	return ENGRAM_OK;
}

static void enqueue(struct device_model *d, cudaStream_t stream)
{
	struct peek peeks[LOOPBACK_MAX];
	struct engram_comm comms[LOOPBACK_MAX];
	struct engram_cuda_layer layers[LOOPBACK_MAX];
	struct engram_error err;

	for (uint32_t rank = 0; rank < d->m->s.size; rank++) {
		peeks[rank] = (struct peek){d, rank};
		comms[rank] =
			(struct engram_comm){.rank = rank,
					     .size = d->m->s.size,
					     .all_gather = peek_all_gather,
					     .context = &peeks[rank]};
		layers[rank] = d->parts[rank].layer;
		layers[rank].comm = &comms[rank];
	}
	for (uint32_t rank = 0; rank < d->m->s.size; rank++)
		OK(engram_cuda_layer_fetch(&layers[rank], &d->parts[rank].batch,
					   stream, &err),
		   &err);
	for (uint32_t rank = 0; rank < d->m->s.size; rank++)
		OK(engram_cuda_layer_finish(
			   &layers[rank], &d->parts[rank].batch, stream, &err),
		   &err);
}

static void next_batch(struct device_model *d, struct layer_model *m,
		       uint64_t seed)
{
	layer_model_batch(m, seed);
	CUDA(cudaMemcpy(d->ids, m->ids,
			(size_t)m->s.tokens * m->s.heads * sizeof(*m->ids),
			cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy(d->mask, m->mask, (size_t)m->s.tokens,
			cudaMemcpyHostToDevice));
	for (uint32_t rank = 0; rank < m->s.size; rank++)
		set_hidden(d, rank);
	CUDA(cudaDeviceSynchronize());
}

static void check_graph(const struct layer_shape *shape)
{
	struct device_model d = {0};
	cudaGraphExec_t exec;
	struct layer_model m;
	cudaStream_t stream;
	cudaGraph_t graph;

	layer_model_open(&m, shape);
	layer_model_batch(&m, 1);
	device_open(&d, &m);
	stream = d.parts[0].stream;
	enqueue(&d, stream); /* kernels are loaded by their first launch */
	CUDA(cudaStreamSynchronize(stream));
	check_result(&d, "before the graph");
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	enqueue(&d, stream);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (uint64_t seed = 2; seed < 5; seed++) {
		next_batch(&d, &m, seed);
		CUDA(cudaGraphLaunch(exec, stream));
		CUDA(cudaStreamSynchronize(stream));
		check_result(&d, "replayed");
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	device_close(&d);
	layer_model_close(&m);
}

static void test_graph(void **state)
{
	struct layer_shape s = {.heads = 6,
				.row_dim = 64,
				.hc_mult = 4,
				.dim = 128,
				.tokens = 11};

	(void)state;
	s.size = 1;
	check_graph(&s);
	s.size = 3;
	check_graph(&s);
	s.sequence_parallel = 1;
	s.fp8 = 1;
	check_graph(&s);
}

/* ---- refusals ---- */

static void refuse_wkv(const struct engram_wkv_params *params,
		       const char *message)
{
	struct engram_error err;
	engram_wkv *wkv;

	assert_int_equal(engram_wkv_create(params, &wkv, &err), ENGRAM_EINVAL);
	assert_null(wkv);
	assert_string_equal(err.message, message);
	assert_true(err.fix[0]);
}

static void test_wkv_refusals(void **state)
{
	uint16_t weight;
	struct engram_wkv_params p = {
		.weight = &weight, .in_features = 1, .out_features = 1};

	(void)state;
	p.in_features = 0;
	refuse_wkv(&p, "in_features: out of range");
	p.in_features = 1;
	p.out_features = 1u << 31;
	refuse_wkv(&p, "out_features: out of range");
	p.out_features = 1;
	p.scales = (const uint8_t *)&weight;
	refuse_wkv(&p, "scales: given with a bf16 weight");
	p.scales = NULL;
	p.format = ENGRAM_WKV_FP8_BLOCK32;
	refuse_wkv(&p, "scales: NULL");
	p.weight = NULL;
	refuse_wkv(&p, "weight: NULL");
	p.format = (enum engram_wkv_format)7;
	refuse_wkv(&p, "format: unknown");
	engram_wkv_destroy(NULL);
}

static void refuse_layer(const struct engram_cuda_layer *layer,
			 const struct engram_cuda_layer_batch *batch,
			 const char *message)
{
	struct engram_error err;

	assert_int_equal(engram_cuda_layer_forward(layer, batch, NULL, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, message);
	assert_true(err.fix[0]);
}

static enum engram_status never(void *context, const uint16_t *in,
				int64_t num_tokens, uint16_t *out,
				engram_stream stream, struct engram_error *err)
{
	(void)context;
	(void)in;
	(void)num_tokens;
	(void)out;
	(void)stream;
	(void)err;
	abort();
}

static void test_layer_refusals(void **state)
{
	struct engram_comm comm = {.rank = 2, .size = 2};
	struct engram_cuda_layer layer = {.source = {.rows = {.dim = 32}},
					  .local_heads = 1,
					  .total_heads = 4,
					  .hc_mult = 1,
					  .dim = 64};
	struct engram_cuda_layer_batch batch = {.num_tokens = 2,
						.workspace = (void *)4096,
						.workspace_bytes = 255};
	struct engram_error err;

	(void)state;
	refuse_layer(&layer, &batch,
		     "local_heads: all ranks together have fewer than "
		     "total_heads");
	assert_int_equal(engram_cuda_layer_workspace(&layer, 2), 0);
	layer.local_heads = 4;
	refuse_layer(&layer, &batch, "wkv: no function to multiply with");
	layer.wkv.forward = never;
	layer.wkv.in_features = 4 * 32 + 1;
	refuse_layer(&layer, &batch,
		     "wkv: its sizes are not those of the layer");
	layer.wkv.in_features = 4 * 32;
	layer.wkv.out_features = 64;
	refuse_layer(&layer, &batch,
		     "wkv: its sizes are not those of the layer");
	layer.wkv.out_features = 2 * 64;
	/* 2 x 4 x 32 and 2 x 2 x 64 elements */
	assert_int_equal(engram_cuda_layer_workspace(&layer, 2), 1024);
	refuse_layer(&layer, &batch,
		     "workspace: 255 bytes, and 2 tokens need 1024");
	batch.workspace = (void *)4104;
	refuse_layer(&layer, &batch,
		     "workspace: NULL, or not aligned to 256 bytes");
	layer.comm = &comm;
	refuse_layer(&layer, &batch, "comm: the rank is not below the size");
	layer.comm = NULL;
	batch.num_tokens = -1;
	refuse_layer(&layer, &batch, "num_tokens: negative");
	batch.num_tokens = INT64_MAX;
	refuse_layer(&layer, &batch, "num_tokens: too many to address");
	batch = (struct engram_cuda_layer_batch){0};
	OK(engram_cuda_layer_forward(&layer, &batch, NULL, &err), &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wkv_refusals),
		cmocka_unit_test(test_layer_refusals),
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_odd),
		cmocka_unit_test(test_released),
		cmocka_unit_test(test_graph),
	};

	cuda_need_device();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
