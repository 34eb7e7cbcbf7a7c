/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tensors in files to records in a segment.  Worker threads each own a
 * ring of bounce buffers: reads are in flight while earlier blocks are
 * packed, hashed and written to their place.  io_uring with O_DIRECT where
 * both are to be had, preadv otherwise.
 */
#ifndef ENGRAMD_LOADER_H
#define ENGRAMD_LOADER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "checkpoint.h"
#include "engram_error.h"
#include "engram_segment.h"

enum loader_engine {
	LOADER_AUTO = 0, /* io_uring if the kernel lets us, else preadv */
	LOADER_IO_URING = 1,
	LOADER_PREADV = 2
};

enum loader_direct {
	LOADER_DIRECT_AUTO = 0, /* O_DIRECT where the file system has it */
	LOADER_DIRECT_ON = 1,
	LOADER_DIRECT_OFF = 2
};

struct loader_options {
	enum loader_engine engine;
	enum loader_direct direct;
	uint32_t threads;     /* 0: one a core, at most 8 */
	uint32_t queue_depth; /* blocks in flight a thread; 0: 8 */
	uint32_t block_bytes; /* of codes in one read; 0: 1 MiB */
};

/* Shared with the threads that watch a load. */
struct loader_progress {
	_Atomic uint64_t bytes_total; /* record bytes */
	_Atomic uint64_t bytes_done;
	_Atomic uint64_t bytes_verified;
	_Atomic bool cancel; /* set by anyone; honoured within a block */
};

/* What really ran, for `status`. */
struct loader_report {
	enum loader_engine engine;
	bool direct; /* of every file */
	bool registered_buffers;
	uint32_t threads, queue_depth, block_bytes;
	double seconds_read, seconds_verify;
	char engine_reason[128]; /* why not the first choice, or "" */
};

/*
 * Fill rows and checksums of the segment from the layer's tensors.  On any
 * error or cancellation all threads have ended, all descriptors are closed,
 * and the segment is the caller's to discard.  ENGRAM_EIO and
 * ENGRAM_ESOURCECHANGED name the file (err->path) and the offset.
 */
enum engram_status loader_fill(const struct checkpoint *checkpoint,
			       const struct checkpoint_layer *layer,
			       struct engram_segment_writer *writer,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_report *report,
			       struct engram_error *err);

/* Read all rows back and compare with the checksums, all threads. */
enum engram_status loader_verify(const struct engram_segment_map *map,
				 uint32_t threads,
				 struct loader_progress *progress,
				 struct engram_error *err);

const char *loader_engine_name(enum loader_engine engine);

#endif
