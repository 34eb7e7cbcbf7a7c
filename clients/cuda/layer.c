/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "engram_cuda_layer.h"

#define ALIGNMENT 256

/* Where everything is in the workspace, in bytes. */
struct plan {
	uint32_t rank, size;
	int64_t out_tokens; /* of this rank, padding included */
	int64_t first;	    /* of them among all tokens */
	int64_t real;	    /* of them that are no padding */
	int in_place;	    /* rows are in order as they are looked up */
	size_t gathered, rows, kv, end;
};

/* Room behind *end for bf16 [a, b, c]; 0, or -1 when it is too much. */
static int place(size_t *end, int64_t a, uint64_t b, uint64_t c)
{
	size_t bytes;

	if (__builtin_mul_overflow(b, c, &bytes) ||
	    __builtin_mul_overflow(bytes, sizeof(uint16_t), &bytes) ||
	    __builtin_mul_overflow(bytes, a, &bytes) ||
	    __builtin_add_overflow(bytes, ALIGNMENT - 1, &bytes))
		return -1;
	bytes -= bytes % ALIGNMENT;
	return __builtin_add_overflow(*end, bytes, end) ? -1 : 0;
}

static void share_out(const struct engram_cuda_layer *layer, int64_t num_tokens,
		      struct plan *plan)
{
	plan->out_tokens = num_tokens;
	if (layer->sequence_parallel)
		plan->out_tokens = num_tokens / plan->size +
				   (num_tokens % plan->size != 0);
	plan->first =
		layer->sequence_parallel ? plan->rank * plan->out_tokens : 0;
	plan->real = num_tokens - plan->first;
	if (plan->real > plan->out_tokens)
		plan->real = plan->out_tokens;
	if (plan->real < 0)
		plan->real = 0;
}

static int lay_out(const struct engram_cuda_layer *layer, int64_t num_tokens,
		   struct plan *plan)
{
	uint64_t row = layer->source.rows.dim;
	uint64_t looked_up = layer->local_heads * row;

	plan->in_place =
		plan->size == 1 && layer->local_heads == layer->total_heads;
	plan->end = 0;
	if (place(&plan->end, num_tokens, looked_up, 1))
		return -1;
	plan->gathered = plan->end;
	if (plan->size > 1 &&
	    place(&plan->end, num_tokens, looked_up, plan->size))
		return -1;
	plan->rows = plan->in_place ? 0 : plan->end;
	if (!plan->in_place &&
	    place(&plan->end, plan->out_tokens, layer->total_heads, row))
		return -1;
	plan->kv = plan->end;
	return place(&plan->end, plan->out_tokens, (uint64_t)layer->hc_mult + 1,
		     layer->dim);
}

static int differs(uint32_t features, uint64_t needed)
{
	return features && features != needed;
}

static enum engram_status make_plan(const struct engram_cuda_layer *layer,
				    int64_t num_tokens, struct plan *plan,
				    struct engram_error *err)
{
	plan->rank = layer->comm ? layer->comm->rank : 0;
	plan->size = layer->comm ? layer->comm->size : 1;
	if (num_tokens < 0)
		return engram_invalid(err, "num_tokens", "negative",
				      "give 0 or more");
	if (plan->rank >= plan->size)
		return engram_invalid(err, "comm",
				      "the rank is not below the size",
				      "give ranks from 0 to size - 1");
	if ((uint64_t)layer->local_heads * plan->size < layer->total_heads)
		return engram_invalid(
			err, "local_heads",
			"all ranks together have fewer than total_heads",
			"give each rank ceil(total_heads / size)");
	if (!layer->wkv.forward)
		return engram_invalid(
			err, "wkv", "no function to multiply with",
			"use engram_wkv_linear, or one of the engine");
	if (differs(layer->wkv.in_features,
		    (uint64_t)layer->total_heads * layer->source.rows.dim) ||
	    differs(layer->wkv.out_features,
		    ((uint64_t)layer->hc_mult + 1) * layer->dim))
		return engram_invalid(
			err, "wkv", "its sizes are not those of the layer",
			"project total_heads * row dim to (hc_mult + 1) * dim");
	share_out(layer, num_tokens, plan);
	if (lay_out(layer, num_tokens, plan))
		return engram_invalid(err, "num_tokens", "too many to address",
				      "pass fewer at once");
	return ENGRAM_OK;
}

size_t engram_cuda_layer_workspace(const struct engram_cuda_layer *layer,
				   int64_t max_tokens)
{
	struct plan plan = {0};

	return make_plan(layer, max_tokens, &plan, NULL) ? 0 : plan.end;
}

static enum engram_status prepare(const struct engram_cuda_layer *layer,
				  const struct engram_cuda_layer_batch *batch,
				  struct plan *plan, struct engram_error *err)
{
	enum engram_status status =
		make_plan(layer, batch->num_tokens, plan, err);

	if (status || !batch->num_tokens)
		return status;
	if (!batch->workspace || (uintptr_t)batch->workspace % ALIGNMENT)
		return engram_invalid(err, "workspace",
				      "NULL, or not aligned to 256 bytes",
				      "pass what cudaMalloc gave");
	if (batch->workspace_bytes >= plan->end)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL,
			 "workspace: %zu bytes, and %lld tokens need %zu",
			 batch->workspace_bytes, (long long)batch->num_tokens,
			 plan->end);
	engram_error_fix(err, "allocate engram_cuda_layer_workspace of the "
			      "largest batch");
	engram_error_path(err, "workspace_bytes");
	engram_error_figures(err, plan->end, batch->workspace_bytes);
	return ENGRAM_EINVAL;
}

static uint16_t *at(const struct engram_cuda_layer_batch *batch, size_t offset)
{
	return (uint16_t *)((char *)batch->workspace + offset);
}

/* An error of one of the steps. */
static enum engram_status failed(enum engram_status status, const char *step,
				 struct engram_error *err)
{
	if (status)
		engram_error_context(err, "layer: %s", step);
	return status;
}

static enum engram_status look_up(const struct engram_cuda_layer *layer,
				  const struct engram_cuda_layer_batch *batch,
				  engram_stream stream,
				  struct engram_error *err)
{
	const struct engram_lookup_args args = {
		.ids = batch->ids,
		.ids_token_stride = batch->ids_token_stride,
		.ids_head_stride = batch->ids_head_stride,
		.num_tokens = batch->num_tokens,
		.head_begin = layer->head_begin,
		.local_heads = layer->local_heads,
		.total_heads = layer->total_heads,
		.misses = layer->misses,
	};

	return failed(engram_cuda_lookup(&layer->source, &args, at(batch, 0),
					 &layer->grid, stream, err),
		      "lookup", err);
}

static enum engram_status gather(const struct engram_cuda_layer *layer,
				 const struct engram_cuda_layer_batch *batch,
				 const struct plan *plan, engram_stream stream,
				 struct engram_error *err)
{
	const struct engram_comm alone = {.size = 1};
	const struct engram_tp_gather_args args = {
		.rows = at(batch, 0),
		.gathered = plan->size > 1 ? at(batch, plan->gathered) : NULL,
		.num_tokens = batch->num_tokens,
		.local_heads = layer->local_heads,
		.total_heads = layer->total_heads,
		.dim = layer->source.rows.dim,
		.sequence_parallel = layer->sequence_parallel,
	};

	if (plan->in_place)
		return ENGRAM_OK;
	return failed(engram_cuda_tp_gather(layer->comm ? layer->comm : &alone,
					    &args, at(batch, plan->rows),
					    stream, err),
		      "gather", err);
}

static enum engram_status open_gate(const struct engram_cuda_layer *layer,
				    const struct engram_cuda_layer_batch *batch,
				    const struct plan *plan,
				    engram_stream stream,
				    struct engram_error *err)
{
	struct engram_gate_args args = {
		.num_tokens = plan->out_tokens,
		.hc_mult = layer->hc_mult,
		.dim = layer->dim,
		.hidden = batch->hidden,
		.kv = at(batch, plan->kv),
		.kv_stride = {((int64_t)layer->hc_mult + 1) * layer->dim, 1},
		.num_kv_tokens = plan->real,
		.q_weight = layer->q_weight,
		.k_weight = layer->k_weight,
		.mask_stride = batch->mask_stride,
		.eps = layer->eps,
		.clamp = layer->clamp,
	};

	for (int i = 0; i < 3; i++) {
		args.hidden_stride[i] = batch->hidden_stride[i];
		args.out_stride[i] = batch->out_stride[i];
	}
	for (int i = 0; i < 2; i++) {
		args.q_stride[i] = layer->q_stride[i];
		args.k_stride[i] = layer->k_stride[i];
	}
	/* the mask has all tokens, the gate those of this rank */
	if (batch->token_mask && plan->real)
		args.token_mask =
			batch->token_mask + plan->first * batch->mask_stride;
	return failed(engram_cuda_gate(&args, batch->out, stream, err), "gate",
		      err);
}

static enum engram_status finish(const struct engram_cuda_layer *layer,
				 const struct engram_cuda_layer_batch *batch,
				 const struct plan *plan, engram_stream stream,
				 struct engram_error *err)
{
	enum engram_status status = gather(layer, batch, plan, stream, err);

	if (status)
		return status;
	/* padding tokens too: their rows are zeros, and every rank makes the
	 * same calls */
	status = failed(layer->wkv.forward(layer->wkv.context,
					   at(batch, plan->rows),
					   plan->out_tokens,
					   at(batch, plan->kv), stream, err),
			"wkv", err);
	if (status)
		return status;
	return open_gate(layer, batch, plan, stream, err);
}

enum engram_status engram_cuda_layer_fetch(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct plan plan = {0};
	enum engram_status status = prepare(layer, batch, &plan, err);

	if (status || !batch->num_tokens)
		return status;
	return look_up(layer, batch, stream, err);
}

enum engram_status engram_cuda_layer_finish(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct plan plan = {0};
	enum engram_status status = prepare(layer, batch, &plan, err);

	if (status || !batch->num_tokens)
		return status;
	return finish(layer, batch, &plan, stream, err);
}

enum engram_status engram_cuda_layer_forward(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct plan plan = {0};
	enum engram_status status = prepare(layer, batch, &plan, err);

	if (status || !batch->num_tokens)
		return status;
	status = look_up(layer, batch, stream, err);
	if (!status)
		status = finish(layer, batch, &plan, stream, err);
	return status;
}
