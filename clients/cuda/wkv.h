/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_WKV_H
#define ENGRAM_WKV_H

#include <pthread.h>

#include "cublaslt.h"
#include "engram_cuda_layer.h"

#define WKV_CHOICES 512

/* How to multiply, for a number of tokens and an alignment of pointers. */
struct wkv_choice {
	int64_t num_tokens; /* 0: none */
	uint32_t alignment;
	cublasLtMatmulAlgo_t algo;
};

struct engram_wkv {
	const struct engram_cublaslt *lt;
	/* The layouts of in and out are set for each product, and the choices
	 * change. */
	pthread_mutex_t lock;
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t product;
	cublasLtMatmulPreference_t preference;
	cublasLtMatrixLayout_t weight_layout, in_layout, out_layout;
	uint32_t in_features, out_features;
	const uint16_t *weight;
	uint16_t *decoded; /* the weight, when it is ours */
	void *workspace;
	size_t workspace_bytes;
	struct wkv_choice choices[WKV_CHOICES];
};

#endif
