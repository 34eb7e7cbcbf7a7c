/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that tensors are read from, with O_DIRECT where that works.
 * A file whose file system turns out not to have it is read through the
 * page cache instead, whoever notices first.
 */
#ifndef ENGRAMD_SOURCES_H
#define ENGRAMD_SOURCES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "checkpoint.h"
#include "loader.h"

/* Direct reads begin and end at multiples of this, or of more. */
#define SOURCE_ALIGN 4096u

struct source {
	uint32_t file;	  /* of the checkpoint */
	const char *path; /* the checkpoint's */
	uint64_t size;	  /* when the checkpoint was opened */
	dev_t device;	  /* of its file system */
	uint32_t align;	  /* of offsets, lengths and memory */
	_Atomic int fd;	  /* to read from */
	_Atomic bool direct;
	enum loader_direct wish;
	pthread_mutex_t lock; /* of the change to buffered reads */
	int direct_fd, buffered_fd;
};

struct sources {
	struct source *files; /* each once */
	unsigned int count;
};

/* ENGRAM_ENOTFOUND, ENGRAM_EPERM, ENGRAM_ENOMEM, ENGRAM_ESYS;
 * ENGRAM_ESOURCECHANGED if a file has another size than when the checkpoint was
 * opened; ENGRAM_EUNSUPPORTED if direct reads were demanded and cannot be had.
 */
enum engram_status sources_open(struct sources *sources,
				const struct checkpoint *checkpoint,
				const struct checkpoint_layer *const *layers,
				uint32_t num_layers, bool scales,
				enum loader_direct wish,
				struct engram_error *err);
void sources_close(struct sources *sources);
/* That of a file of the checkpoint, one that is read from. */
struct source *sources_of(const struct sources *sources, uint32_t file);
bool sources_direct(const struct sources *sources);
uint32_t sources_align(const struct sources *sources);

/* The kernel refused a direct read: read this file buffered from now on.
 * Any thread. */
enum engram_status source_go_buffered(struct source *source,
				      struct engram_error *err);

/* These bytes are in place; the page cache need not hold them. */
void source_drop(const struct source *source, uint64_t offset, uint64_t bytes);

/* The file is not what it was: an error with both sizes. */
enum engram_status source_shrank(const struct source *source, uint64_t offset,
				 struct engram_error *err);

#endif
