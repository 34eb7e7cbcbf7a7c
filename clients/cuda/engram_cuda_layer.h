/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole Engram layer on the GPU:
 *
 *	hash ids -> lookup -> gather -> wkv -> gate -> residual stream
 *
 * made of the functions of engram_cuda_kernels.h and of one matrix product,
 * `wkv`, which projects the rows of a token to hc_mult keys and a value.  The
 * product is the engine's own (struct engram_linear) or ours, through cuBLASLt.
 *
 *	engram_wkv *wkv;
 *
 *	engram_wkv_create(&(struct engram_wkv_params){
 *		.format = ENGRAM_WKV_BF16, .weight = weight,
 *		.in_features = 24 * 256, .out_features = 5 * 5120}, &wkv, &err);
 *	struct engram_cuda_layer layer = {
 *		.source = source, .local_heads = 24, .total_heads = 24,
 *		.wkv = engram_wkv_linear(wkv),
 *		.hc_mult = 4, .dim = 5120, ...};
 *	engram_cuda_layer_forward(&layer, &batch, stream, &err);
 *
 * Pointers, errors, capture into a graph: as engram_cuda_kernels.h says; bf16
 * is passed as its uint16_t bits.
 */
#ifndef ENGRAM_CUDA_LAYER_H
#define ENGRAM_CUDA_LAYER_H

#include "engram_cuda_kernels.h"

#pragma GCC visibility push(default) /* libengram_cuda exports these */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- wkv ---- */

/*
 * out[num_tokens, out_features] = in[num_tokens, in_features] x weight^T, both
 * bf16, contiguous and in device memory; ordered in the stream.  num_tokens
 * is not 0.
 */
struct engram_linear {
	enum engram_status (*forward)(void *context, const uint16_t *in,
				      int64_t num_tokens, uint16_t *out,
				      engram_stream stream,
				      struct engram_error *err);
	void *context;
	/* A layer whose sizes differ is refused; 0: not known. */
	uint32_t in_features, out_features;
};

typedef struct engram_wkv engram_wkv;

enum engram_wkv_format {
	/* weight bf16 [out_features, in_features]: used where it is, and so
	 * it must outlive the handle */
	ENGRAM_WKV_BF16 = 0,
	/* weight fp8 e4m3fn [out_features, in_features] and scales ue8m0
	 * [ceil(out_features / 32), ceil(in_features / 32)], one for 32 x 32
	 * codes: decoded to bf16 when the handle is made, into device memory
	 * of its own; the caller's may go then */
	ENGRAM_WKV_FP8_BLOCK32 = 1
};

struct engram_wkv_params {
	enum engram_wkv_format format;
	const void *weight;    /* device, contiguous */
	const uint8_t *scales; /* device, contiguous; fp8 only */
	uint32_t in_features;  /* total_heads * dim of a row */
	uint32_t out_features; /* (hc_mult + 1) * dim of the model */
	/* Device memory for the product to work in; 0: 32 MiB. */
	size_t workspace_bytes;
};

/*
 * For the current device, not while a stream of it is captured.  What the
 * pointers name must be there already.  Allocates and waits.  cuBLASLt is
 * not linked: the one that the process has loaded, else the first that is
 * found, with the major version of the header that this was built with.
 * ENGRAM_EUNSUPPORTED when there is none, ENGRAM_ECUDA when it, or CUDA, fails.
 */
enum engram_status engram_wkv_create(const struct engram_wkv_params *params,
				     engram_wkv **out,
				     struct engram_error *err);

/*
 * Choose the way to multiply for a number of tokens now.  Otherwise the first
 * product of that many does it, on the host, in some microseconds; the last
 * 512 different choices are kept.
 */
enum engram_status engram_wkv_prepare(engram_wkv *wkv, int64_t num_tokens,
				      struct engram_error *err);

/*
 * Its products accumulate in fp32.  All of one handle share a workspace: order
 * them, by one stream or by events.  Any threads may enqueue them.
 */
struct engram_linear engram_wkv_linear(engram_wkv *wkv);

/* When no product is under way and no graph holds one.  NULL is allowed. */
void engram_wkv_destroy(engram_wkv *wkv);

/* ---- the layer ---- */

/* What stays from batch to batch. */
struct engram_cuda_layer {
	/* the table, as engram_cuda_lookup has it; its rows' dim is row_dim
	 * below */
	struct engram_cuda_source source;
	uint32_t head_begin, local_heads; /* of this rank, padding included */
	uint32_t total_heads;
	uint64_t *misses; /* device, += ids that no row answers; or NULL */
	struct engram_cuda_grid grid;

	const struct engram_comm *comm; /* NULL: one rank */
	/* Each rank has its share of the tokens from the gather on. */
	int sequence_parallel;

	struct engram_linear wkv; /* total_heads * row_dim -> (hc_mult + 1) *
				   * dim */
	uint32_t hc_mult;
	uint32_t dim;
	const uint16_t *q_weight, *k_weight; /* bf16 [hc_mult, dim] */
	int64_t q_stride[2], k_stride[2];
	float eps, clamp; /* as struct engram_gate_args */
};

/*
 * One batch of T tokens.  This rank's tokens are all of them, or with
 * sequence_parallel the S = ceil(T / size) from rank * S on, of which those at
 * or past T are padding: their `out` is `hidden` plus nothing.
 */
struct engram_cuda_layer_batch {
	int64_t num_tokens; /* T; the same on every rank */
	const int32_t *ids; /* [T, total_heads] */
	int64_t ids_token_stride, ids_head_stride;
	/* [T], 0 shuts a token's gate; or NULL */
	const uint8_t *token_mask;
	int64_t mask_stride;
	const uint16_t *hidden; /* bf16 [T or S, hc_mult, dim] */
	int64_t hidden_stride[3];
	uint16_t *out; /* likewise; may be `hidden` */
	int64_t out_stride[3];
	/* Device memory, aligned to 256 bytes, for this batch until its last
	 * kernel has run. */
	void *workspace;
	size_t workspace_bytes;
};

/* What batches of up to max_tokens need.  0 for a layer that is refused. */
size_t engram_cuda_layer_workspace(const struct engram_cuda_layer *layer,
				   int64_t max_tokens);

enum engram_status engram_cuda_layer_forward(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err);

/*
 * The same in two steps, for an engine that fetches the rows early and beside
 * the layers before: `fetch` looks up this rank's rows into the workspace;
 * `finish` does the rest, and has to be ordered behind it.  Only ids,
 * num_tokens and workspace of the batch matter to `fetch`, and all but the ids
 * to `finish`.
 */
enum engram_status engram_cuda_layer_fetch(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err);
enum engram_status engram_cuda_layer_finish(
	const struct engram_cuda_layer *layer,
	const struct engram_cuda_layer_batch *batch, engram_stream stream,
	struct engram_error *err);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
