/* SPDX-License-Identifier: Apache-2.0 */
#include "engram_cuda_layer.h"

#if __has_include(<cublasLt.h>)
#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdlib.h>

#include "check.h"
#include "device.h"
#include "launch.h"
#include "wkv.h"
#include "wkv_decode.h"

#define DEFAULT_WORKSPACE ((size_t)32 << 20)

static cublasStatus_t make_product(struct engram_wkv *wkv)
{
	const cublasOperation_t transposed = CUBLAS_OP_T;
	cublasStatus_t code = wkv->lt->cublasLtMatmulDescCreate(
		&wkv->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);

	if (!code)
		code = wkv->lt->cublasLtMatmulDescSetAttribute(
			wkv->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
			sizeof(transposed));
	return code;
}

static cublasStatus_t make_preference(struct engram_wkv *wkv)
{
	/* parts of a sum are added up in fp32, or there are none */
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const uint64_t bytes = wkv->workspace_bytes;
	cublasStatus_t code =
		wkv->lt->cublasLtMatmulPreferenceCreate(&wkv->preference);

	if (!code)
		code = wkv->lt->cublasLtMatmulPreferenceSetAttribute(
			wkv->preference,
			CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
			sizeof(reduction));
	if (!code)
		code = wkv->lt->cublasLtMatmulPreferenceSetAttribute(
			wkv->preference,
			CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
			sizeof(bytes));
	return code;
}

static cublasStatus_t make_layouts(struct engram_wkv *wkv, uint32_t in,
				   uint32_t out)
{
	cublasStatus_t code = wkv->lt->cublasLtMatrixLayoutCreate(
		&wkv->weight_layout, CUDA_R_16BF, in, out, in);

	if (!code)
		code = wkv->lt->cublasLtMatrixLayoutCreate(
			&wkv->in_layout, CUDA_R_16BF, in, 1, in);
	if (!code)
		code = wkv->lt->cublasLtMatrixLayoutCreate(
			&wkv->out_layout, CUDA_R_16BF, out, 1, out);
	return code;
}

static enum engram_status make_cublas(struct engram_wkv *wkv,
				      const struct engram_wkv_params *params,
				      struct engram_error *err)
{
	cublasStatus_t code = wkv->lt->cublasLtCreate(&wkv->handle);

	if (!code)
		code = make_product(wkv);
	if (!code)
		code = make_preference(wkv);
	if (!code)
		code = make_layouts(wkv, params->in_features,
				    params->out_features);
	if (code)
		cudaGetLastError();
	return engram_cublaslt_status(wkv->lt, code, "starting cuBLASLt", err);
}

static enum engram_status device_room(void **out, size_t bytes,
				      const char *what,
				      struct engram_error *err)
{
	enum engram_status status =
		engram_cuda_status(cudaMalloc(out, bytes), what, err);

	if (status)
		engram_error_figures(err, bytes, 0);
	return status;
}

/* The weight as bf16: where it is, or decoded. */
static enum engram_status take_weight(struct engram_wkv *wkv,
				      const struct engram_wkv_params *params,
				      struct engram_error *err)
{
	size_t bytes =
		sizeof(uint16_t) * params->in_features * params->out_features;
	enum engram_status status;

	if (params->format == ENGRAM_WKV_BF16) {
		wkv->weight = params->weight;
		return ENGRAM_OK;
	}
	status = device_room((void **)&wkv->decoded, bytes,
			     "memory for the decoded weight", err);
	if (!status)
		status = engram_wkv_decode(
			params->weight, params->scales, params->out_features,
			params->in_features, wkv->decoded, NULL, err);
	/* the caller may free or change the codes when this returns */
	if (!status)
		status = engram_cuda_status(cudaStreamSynchronize(NULL),
					    "decoding the weight", err);
	wkv->weight = wkv->decoded;
	return status;
}

static enum engram_status check(const struct engram_wkv_params *params,
				struct engram_error *err)
{
	if (params->format != ENGRAM_WKV_BF16 &&
	    params->format != ENGRAM_WKV_FP8_BLOCK32)
		return engram_invalid(err, "format", "unknown", "use 0 or 1");
	if (!params->weight)
		return engram_invalid(err, "weight", "NULL", "pass it");
	if (params->format == ENGRAM_WKV_FP8_BLOCK32 && !params->scales)
		return engram_invalid(err, "scales", "NULL",
				      "pass those of the fp8 weight");
	if (params->format == ENGRAM_WKV_BF16 && params->scales)
		return engram_invalid(err, "scales", "given with a bf16 weight",
				      "set format to fp8, or scales to NULL");
	if (!params->in_features || params->in_features > INT_MAX)
		return engram_invalid(err, "in_features", "out of range",
				      "give total_heads * dim of a row");
	if (!params->out_features || params->out_features > INT_MAX)
		return engram_invalid(err, "out_features", "out of range",
				      "give (hc_mult + 1) * dim of the model");
	return ENGRAM_OK;
}

static enum engram_status create(struct engram_wkv *wkv,
				 const struct engram_wkv_params *params,
				 struct engram_error *err)
{
	enum engram_status status;

	wkv->workspace_bytes = params->workspace_bytes ? params->workspace_bytes
						       : DEFAULT_WORKSPACE;
	status = engram_cublaslt_load(&wkv->lt, err);
	/* before cuBLASLt, which does not tell why there is no device */
	if (!status)
		status = device_room(&wkv->workspace, wkv->workspace_bytes,
				     "memory for the product to work in", err);
	if (!status)
		status = make_cublas(wkv, params, err);
	if (!status)
		status = take_weight(wkv, params, err);
	return status;
}

enum engram_status engram_wkv_create(const struct engram_wkv_params *params,
				     engram_wkv **out, struct engram_error *err)
{
	enum engram_status status = check(params, err);
	struct engram_wkv *wkv;

	*out = NULL;
	if (status)
		return status;
	wkv = calloc(1, sizeof(*wkv));
	if (!wkv)
		return engram_error_set(err, ENGRAM_ENOMEM, "out of memory");
	pthread_mutex_init(&wkv->lock, NULL);
	wkv->in_features = params->in_features;
	wkv->out_features = params->out_features;
	status = create(wkv, params, err);
	if (status) {
		engram_wkv_destroy(wkv);
		engram_error_context(err, "wkv");
		return status;
	}
	*out = wkv;
	return ENGRAM_OK;
}

/* In relaxed mode, so as not to spoil what another thread captures. */
static void free_device(struct engram_wkv *wkv)
{
	struct engram_error ignored;
	struct cuda_scope scope;

	if (cuda_enter(&scope, -1, &ignored))
		return; /* a lost context has freed it */
	engram_cuda_ignore(cudaFree(wkv->workspace));
	engram_cuda_ignore(cudaFree(wkv->decoded));
	cuda_leave(&scope);
}

void engram_wkv_destroy(engram_wkv *wkv)
{
	if (!wkv)
		return;
	if (wkv->weight_layout)
		wkv->lt->cublasLtMatrixLayoutDestroy(wkv->weight_layout);
	if (wkv->in_layout)
		wkv->lt->cublasLtMatrixLayoutDestroy(wkv->in_layout);
	if (wkv->out_layout)
		wkv->lt->cublasLtMatrixLayoutDestroy(wkv->out_layout);
	if (wkv->preference)
		wkv->lt->cublasLtMatmulPreferenceDestroy(wkv->preference);
	if (wkv->product)
		wkv->lt->cublasLtMatmulDescDestroy(wkv->product);
	if (wkv->handle)
		wkv->lt->cublasLtDestroy(wkv->handle);
	free_device(wkv);
	pthread_mutex_destroy(&wkv->lock);
	free(wkv);
}

#else /* no cublasLt.h */

enum engram_status engram_wkv_create(const struct engram_wkv_params *params,
				     engram_wkv **out, struct engram_error *err)
{
	(void)params;
	*out = NULL;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "wkv: built without cublasLt.h");
	engram_error_fix(err, "build with cuBLAS, or give the layer a matrix "
			      "product of your own");
	return ENGRAM_EUNSUPPORTED;
}

enum engram_status engram_wkv_prepare(engram_wkv *wkv, int64_t num_tokens,
				      struct engram_error *err)
{
	(void)wkv;
	(void)num_tokens;
	return engram_error_set(err, ENGRAM_EUNSUPPORTED,
				"wkv: built without cublasLt.h");
}

struct engram_linear engram_wkv_linear(engram_wkv *wkv)
{
	(void)wkv;
	return (struct engram_linear){0};
}

void engram_wkv_destroy(engram_wkv *wkv)
{
	(void)wkv;
}
#endif
