/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the arithmetic headers need to be C here and CUDA C++ there:
 * engram_hash_math.h and engram_row_math.h hold what both backends compute,
 * so that they cannot drift apart.
 */
#ifndef ENGRAM_MATH_H
#define ENGRAM_MATH_H

#ifdef __CUDACC__
#define ENGRAM_FN __host__ __device__ __forceinline__
#else
#define ENGRAM_FN static inline
#endif

/*
 * `right`, except in builds with -DENGRAM_MUTANT=n.  tests/mutation builds
 * every mutant and demands that the tests notice it.
 */
#ifdef ENGRAM_MUTANT
#define ENGRAM_MUTATE(n, right, wrong) \
	((n) == ENGRAM_MUTANT ? (wrong) : (right))
#else
#define ENGRAM_MUTATE(n, right, wrong) (right)
#endif

#endif
