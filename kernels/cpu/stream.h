/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores past the caches, for memory that is written whole and not read soon:
 * a store that missed would read each line first, and evict another.  By the
 * widest registers that the file is compiled for.
 */
#ifndef ENGRAM_CPU_STREAM_H
#define ENGRAM_CPU_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define STREAM_LINE 64

/* Whole lines to a line. */
static inline void stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
#if defined(__AVX512F__)
	for (size_t at = 0; at < bytes; at += 64)
		_mm512_stream_si512((void *)(to + at),
				    _mm512_loadu_si512(from + at));
#elif defined(__AVX2__)
	for (size_t at = 0; at < bytes; at += 32)
		_mm256_stream_si256(
			(void *)(to + at),
			_mm256_loadu_si256((const void *)(from + at)));
#elif defined(__SSE2__)
	for (size_t at = 0; at < bytes; at += 16)
		_mm_stream_si128((void *)(to + at),
				 _mm_loadu_si128((const void *)(from + at)));
#else
	memcpy(to, from, bytes);
#endif
}

/* What was streamed is not ordered by a release store alone. */
static inline void stream_end(void)
{
#ifdef __SSE2__
	_mm_sfence();
#endif
}

#endif
