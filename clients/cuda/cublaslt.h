/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASLt without linking it: 700 MB that only those need who have no matrix
 * product of their own.
 */
#ifndef ENGRAM_CUBLASLT_H
#define ENGRAM_CUBLASLT_H

#include <cublasLt.h>

#include "engram_error.h"

#define ENGRAM_CUBLASLT_FUNCTIONS(F)            \
	F(cublasLtCreate)                       \
	F(cublasLtDestroy)                      \
	F(cublasLtGetStatusString)              \
	F(cublasLtMatmul)                       \
	F(cublasLtMatmulAlgoGetHeuristic)       \
	F(cublasLtMatmulDescCreate)             \
	F(cublasLtMatmulDescDestroy)            \
	F(cublasLtMatmulDescSetAttribute)       \
	F(cublasLtMatmulPreferenceCreate)       \
	F(cublasLtMatmulPreferenceDestroy)      \
	F(cublasLtMatmulPreferenceSetAttribute) \
	F(cublasLtMatrixLayoutCreate)           \
	F(cublasLtMatrixLayoutDestroy)          \
	F(cublasLtMatrixLayoutSetAttribute)

struct engram_cublaslt {
#define ENGRAM_CUBLASLT_MEMBER(name) __typeof__(name) *name;
	ENGRAM_CUBLASLT_FUNCTIONS(ENGRAM_CUBLASLT_MEMBER)
#undef ENGRAM_CUBLASLT_MEMBER
};

/* Looked for until it is found, and never unloaded.  ENGRAM_EUNSUPPORTED. */
enum engram_status engram_cublaslt_load(const struct engram_cublaslt **out,
					struct engram_error *err);

/* ENGRAM_ECUDA with the text of a status that is no success. */
enum engram_status engram_cublaslt_status(const struct engram_cublaslt *lt,
					  cublasStatus_t code, const char *what,
					  struct engram_error *err);

#endif
