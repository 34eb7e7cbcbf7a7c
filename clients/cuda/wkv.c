/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out = in x weight^T by cuBLASLt.  What is row-major here is column-major
 * and transposed there: D [out, T] = A^T [out, in] x B [in, T], with the weight
 * as A.
 */
#if __has_include(<cublasLt.h>)
#include <cuda_runtime_api.h>
#include <limits.h>

#include "wkv.h"

#define BEST_ALIGNMENT 256

static uint32_t alignment_of(uintptr_t bits)
{
	uintptr_t lowest = bits & -bits;

	return lowest && lowest < BEST_ALIGNMENT ? (uint32_t)lowest
						 : BEST_ALIGNMENT;
}

static cublasStatus_t set_tokens(const struct engram_wkv *wkv,
				 int64_t num_tokens)
{
	uint64_t cols = (uint64_t)num_tokens;
	cublasStatus_t code = wkv->lt->cublasLtMatrixLayoutSetAttribute(
		wkv->in_layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols,
		sizeof(cols));

	if (!code)
		code = wkv->lt->cublasLtMatrixLayoutSetAttribute(
			wkv->out_layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols,
			sizeof(cols));
	return code;
}

static cublasStatus_t prefer_alignment(const struct engram_wkv *wkv,
				       uint32_t alignment)
{
	const struct {
		cublasLtMatmulPreferenceAttributes_t name;
		uint32_t value;
	} wanted[] = {
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		 alignment_of((uintptr_t)wkv->weight)},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment},
	};
	cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

	for (size_t i = 0; !code && i < sizeof(wanted) / sizeof(wanted[0]); i++)
		code = wkv->lt->cublasLtMatmulPreferenceSetAttribute(
			wkv->preference, wanted[i].name, &wanted[i].value,
			sizeof(wanted[i].value));
	return code;
}

/* With the lock held and the layouts set. */
static enum engram_status choose(struct engram_wkv *wkv, int64_t num_tokens,
				 uint32_t alignment,
				 const struct wkv_choice **out,
				 struct engram_error *err)
{
	struct wkv_choice *choice = &wkv->choices[num_tokens % WKV_CHOICES];
	cublasLtMatmulHeuristicResult_t result;
	cublasStatus_t code;
	int count = 0;

	*out = choice;
	if (choice->num_tokens == num_tokens && choice->alignment == alignment)
		return ENGRAM_OK;
	choice->num_tokens = 0;
	code = prefer_alignment(wkv, alignment);
	if (!code)
		code = wkv->lt->cublasLtMatmulAlgoGetHeuristic(
			wkv->handle, wkv->product, wkv->weight_layout,
			wkv->in_layout, wkv->out_layout, wkv->out_layout,
			wkv->preference, 1, &result, &count);
	if (!code)
		code = count ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
	if (code)
		return engram_cublaslt_status(wkv->lt, code,
					      "choosing how to multiply", err);
	choice->algo = result.algo;
	choice->alignment = alignment;
	choice->num_tokens = num_tokens;
	return ENGRAM_OK;
}

/* With the lock held. */
static enum engram_status multiply(struct engram_wkv *wkv, const uint16_t *in,
				   int64_t num_tokens, uint16_t *out,
				   engram_stream stream,
				   struct engram_error *err)
{
	const float one = 1, zero = 0;
	const struct wkv_choice *choice;
	cublasStatus_t code = set_tokens(wkv, num_tokens);
	enum engram_status status =
		engram_cublaslt_status(wkv->lt, code, "setting layouts", err);

	if (!status)
		status = choose(wkv, num_tokens,
				alignment_of((uintptr_t)in | (uintptr_t)out),
				&choice, err);
	if (status)
		return status;
	code = wkv->lt->cublasLtMatmul(
		wkv->handle, wkv->product, &one, wkv->weight,
		wkv->weight_layout, in, wkv->in_layout, &zero, out,
		wkv->out_layout, out, wkv->out_layout, &choice->algo,
		wkv->workspace, wkv->workspace_bytes, stream);
	if (code) /* it may stand for a CUDA error, which is consumed */
		cudaGetLastError();
	return engram_cublaslt_status(wkv->lt, code, "multiplying", err);
}

static enum engram_status check_tokens(int64_t num_tokens,
				       struct engram_error *err)
{
	if (num_tokens > 0 && num_tokens <= INT_MAX)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL, "num_tokens: %lld",
			 (long long)num_tokens);
	engram_error_fix(err, "give 1 to %d", INT_MAX);
	engram_error_path(err, "num_tokens");
	return ENGRAM_EINVAL;
}

static enum engram_status forward(void *context, const uint16_t *in,
				  int64_t num_tokens, uint16_t *out,
				  engram_stream stream,
				  struct engram_error *err)
{
	struct engram_wkv *wkv = context;
	enum engram_status status = check_tokens(num_tokens, err);

	if (status)
		return status;
	pthread_mutex_lock(&wkv->lock);
	status = multiply(wkv, in, num_tokens, out, stream, err);
	pthread_mutex_unlock(&wkv->lock);
	return status;
}

struct engram_linear engram_wkv_linear(engram_wkv *wkv)
{
	return (struct engram_linear){
		.forward = forward,
		.context = wkv,
		.in_features = wkv->in_features,
		.out_features = wkv->out_features,
	};
}

enum engram_status engram_wkv_prepare(engram_wkv *wkv, int64_t num_tokens,
				      struct engram_error *err)
{
	enum engram_status status = check_tokens(num_tokens, err);
	const struct wkv_choice *choice;

	if (status)
		return status;
	pthread_mutex_lock(&wkv->lock);
	status = engram_cublaslt_status(wkv->lt, set_tokens(wkv, num_tokens),
					"setting layouts", err);
	if (!status)
		status = choose(wkv, num_tokens, BEST_ALIGNMENT, &choice, err);
	pthread_mutex_unlock(&wkv->lock);
	return status;
}
#endif /* else wkv_create.c has all */
