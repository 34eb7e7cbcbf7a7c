/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads in flight.  Two engines, io_uring and preadv, queue requests and give
 * back results; the rules of what a result means are shared.  A reader and
 * its requests belong to one thread.
 */
#ifndef ENGRAMD_READER_H
#define ENGRAMD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loader.h"
#include "sources.h"

struct reader_request {
	struct source *source;
	uint8_t *buffer;
	uint64_t offset; /* in the file, of buffer[0] */
	uint32_t bytes;	 /* asked for; may go past the end of the file */
	uint32_t needed; /* that must arrive */
	uint32_t done;	 /* that have arrived */
	uint32_t stalls; /* results in a row that brought nothing */
	bool pending;
};

struct reader;

struct reader_ops {
	/* Queue what is still to be read of the request; 0 or -errno. */
	int (*submit)(struct reader *reader, struct reader_request *request);
	/* 1 and one result (bytes or -errno); 0 if a while passed without
	 * one; -errno if the engine itself failed. */
	int (*next)(struct reader *reader, struct reader_request **request,
		    int *result);
	/* One that is in flight is so no more, whatever came of it: 1; 0 if a
	 * while passed without; -errno. */
	int (*drain)(struct reader *reader);
	/* Nothing is in flight, or the engine failed. */
	void (*destroy)(struct reader *reader);
};

struct reader {
	const struct reader_ops *ops;
	enum loader_engine engine;
	bool registered;	/* buffers are known to the kernel */
	unsigned int in_flight; /* requests queued */
};

/* Room for `depth` requests into the buffers of `arena`.  0 or -errno. */
int reader_uring_open(unsigned int depth, void *arena, size_t arena_bytes,
		      struct reader **out);
int reader_pread_open(unsigned int depth, struct reader **out);
/* Does the kernel let us use io_uring?  0 or -errno. */
int reader_uring_probe(void);

/* Start a request whose first five fields are set. */
enum engram_status reader_start(struct reader *reader,
				struct reader_request *request,
				struct engram_error *err);

/* Wait a while for one result: 1 and it; 0 if none came; -errno if the engine
 * itself failed.  Touches nothing but the reader and the buffers. */
int reader_wait(struct reader *reader, struct reader_request **request,
		int *result);
/* Act on what reader_wait returned.  A request is whole when it is no longer
 * pending.  Any error is final. */
enum engram_status reader_act(struct reader *reader, int waited,
			      struct reader_request *request, int result,
			      struct engram_error *err);
/* Both. */
enum engram_status reader_step(struct reader *reader, struct engram_error *err);

/*
 * Wait for what is in flight and free the reader (NULL is allowed).  False
 * if that was impossible: the kernel may then still write to the buffers,
 * which must never be freed.
 */
bool reader_close(struct reader *reader);

#endif
