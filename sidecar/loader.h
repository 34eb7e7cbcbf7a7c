/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tensors in files to records in segments.  Worker threads each own a
 * ring of bounce buffers: reads are in flight while earlier blocks are
 * packed, hashed and written to their place, and other threads fault in the
 * memory that comes next.  io_uring with O_DIRECT where both are to be had,
 * preadv otherwise.
 */
#ifndef ENGRAMD_LOADER_H
#define ENGRAMD_LOADER_H

#include <sched.h>
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

enum loader_priority {
	LOADER_PRIORITY_NORMAL = 0, /* engramd's own */
	LOADER_PRIORITY_LOW = 1,    /* the lowest that gets its share */
	LOADER_PRIORITY_IDLE = 2    /* what others leave */
};

struct loader_options {
	enum loader_engine engine;
	enum loader_direct direct;
	uint32_t threads; /* 0: one a core, at most 8 */
	/* 0: what is found to be best, where the load is large enough to try */
	uint32_t queue_depth;	   /* blocks in flight a thread; 8 */
	uint32_t block_bytes;	   /* of codes in one read; 1 MiB */
	uint64_t bytes_per_second; /* of all loads together; 0: no limit */
	enum loader_priority priority;
	const cpu_set_t *cores; /* that threads run on; NULL: any */
};

/* By clock_ns(); 0: not yet. */
struct loader_span {
	_Atomic uint64_t begin_ns, end_ns;
};

struct loader_layer_progress {
	_Atomic int32_t layer_id;
	_Atomic uint64_t bytes_total; /* record bytes */
	_Atomic uint64_t bytes_done;
	_Atomic uint64_t bytes_verified;
	struct loader_span reading, verifying;
};

/* Work on a span begins, perhaps not for the first time, and ends. */
void loader_span_begin(struct loader_span *span);
void loader_span_end(struct loader_span *span);

/* Shared with the threads that watch a load. */
struct loader_progress {
	_Atomic uint64_t bytes_total; /* record bytes, of all layers */
	_Atomic uint64_t bytes_done;
	_Atomic uint64_t bytes_verified;
	_Atomic uint64_t bytes_touched; /* of the backing: they are memory */
	/* How often bytes_total are checked, or copied and checked: once for
	 * each copy.  0 as 1. */
	_Atomic uint32_t copies;
	_Atomic uint32_t num_layers;
	struct loader_layer_progress layers[ENGRAM_LAYERS_MAX];
	_Atomic bool cancel; /* set by anyone; honoured within a block */
};

/* What really ran, for `status`. */
struct loader_report {
	enum loader_engine engine;
	bool direct; /* of every file */
	bool registered_buffers;
	uint32_t threads, queue_depth, block_bytes;
	bool tuned;    /* depth and block were found by trying */
	bool manifest; /* what was read is what the manifest says */
	double seconds_read, seconds_verify;
	char engine_reason[128]; /* why not the first choice, or "" */
};

/* A layer to be filled. */
struct loader_layer {
	const struct checkpoint_layer *layer;
	struct engram_segment_writer *writer; /* NULL: only take checksums */
	/* Without a writer: of the segment that would be, and [chunks]. */
	const struct engram_segment_header *header;
	uint64_t *checksums;
	/* What they must come out as, or NULL. */
	const uint64_t *known;
};

/*
 * Fill rows and checksums of the segments from the layers' tensors, all at
 * once.  progress->layers has one entry for each, and its bytes_total is set
 * before.  On any error or cancellation all threads have ended but those that
 * wait for a drive which does not answer; all descriptors are closed, and the
 * segments are the caller's to discard.  ENGRAM_EIO and ENGRAM_ESOURCECHANGED
 * name the file (err->path) and the offset; ENGRAM_ECHECKSUM, of rows that are
 * not as they are known, too.
 */
enum engram_status loader_fill(const struct checkpoint *checkpoint,
			       const struct loader_layer *layers,
			       uint32_t num_layers,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_report *report,
			       struct engram_error *err);

/* Read all rows back and compare with the checksums, all threads.  `layer` is
 * one of progress->layers. */
enum engram_status loader_verify(const struct engram_segment_map *map,
				 uint32_t threads,
				 struct loader_progress *progress,
				 struct loader_layer_progress *layer,
				 struct engram_error *err);

/*
 * Copy all rows and checksums of a layer into `writer`, which `to` is the view
 * of and whose geometry is the same, and compare what came there with the
 * checksums, as loader_verify does; `options` has threads and cores.
 */
enum engram_status loader_copy(const struct engram_segment_map *from,
			       const struct engram_segment_map *to,
			       struct engram_segment_writer *writer,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_layer_progress *layer,
			       struct engram_error *err);

const char *loader_engine_name(enum loader_engine engine);

#endif
