/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory behind the rows of a segment, ahead of who writes them: stretch by
 * stretch, each faulted in once, by whoever comes first.  Any thread.
 */
#ifndef ENGRAMD_LOADER_MEMORY_H
#define ENGRAMD_LOADER_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engram_segment.h"

struct loader_memory {
	struct engram_segment_writer *writer; /* NULL: needs none */
	const struct engram_segment_header *header;
	uint64_t bytes; /* of the segment */
	uint64_t stretch_bytes;
	_Atomic uint8_t *stretch;  /* enum in loader_memory.c */
	_Atomic uint64_t *touched; /* bytes, of all */
	pthread_mutex_t lock;	   /* of waiting */
	pthread_cond_t changed;
};

/* ENGRAM_ENOMEM.  `touched` counts the bytes that have become memory. */
enum engram_status loader_memory_init(struct loader_memory *memory,
				      struct engram_segment_writer *writer,
				      _Atomic uint64_t *touched,
				      struct engram_error *err);
void loader_memory_free(struct loader_memory *memory);

/*
 * Have memory behind [begin, end) of the segment.  With `wait` it is there on
 * return, else some of it may still be another thread's work.  Ends early,
 * with ENGRAM_OK, once *stop; ENGRAM_ENOSPACE and the like.
 */
enum engram_status loader_memory_have(struct loader_memory *memory,
				      uint64_t begin, uint64_t end, bool wait,
				      const _Atomic bool *stop,
				      struct engram_error *err);
/* The same for rows of it, in either layout. */
enum engram_status loader_memory_have_rows(struct loader_memory *memory,
					   uint64_t row_begin, uint64_t row_end,
					   bool wait, const _Atomic bool *stop,
					   struct engram_error *err);
/* Nobody waits any longer; `stop` was set before. */
void loader_memory_wake(struct loader_memory *memory);

#endif
