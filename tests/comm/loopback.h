/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator whose ranks are threads of one process: all_gather waits for
 * all of them and copies.  What stands at the pointers is the business of the
 * operations, so that it serves memory of the host and of a device.
 *
 * A rank that has failed or returned breaks the world: an all_gather that
 * waits for it, or would, is ENGRAM_ENCCL and does not hang.
 */
#ifndef TEST_LOOPBACK_H
#define TEST_LOOPBACK_H

#include "engram_comm.h"

#define LOOPBACK_MAX 8

/* Called by the rank's own thread, in this order, with all ranks waiting for
 * each other after `ready` and after `done`. */
struct loopback_ops {
	/* what this rank sends is written when its stream gets here */
	enum engram_status (*ready)(void *context, uint32_t rank,
				    engram_stream stream,
				    struct engram_error *err);
	/* once for each rank `from`, after its `ready` */
	enum engram_status (*copy)(void *context, uint32_t from, void *to,
				   const void *what, size_t bytes,
				   engram_stream stream,
				   struct engram_error *err);
	/* this rank has read what it wants */
	enum engram_status (*done)(void *context, uint32_t rank,
				   engram_stream stream,
				   struct engram_error *err);
	/* the stream goes on when all ranks are done */
	enum engram_status (*settle)(void *context, engram_stream stream,
				     struct engram_error *err);
	void *context;
};
extern const struct loopback_ops loopback_host;

/* One rank's part; what it returns is left in the results. */
typedef enum engram_status loopback_rank(const struct engram_comm *comm,
					 void *arg, struct engram_error *err);

struct loopback_result {
	enum engram_status status;
	struct engram_error err;
	uint64_t calls; /* of all_gather */
};

struct loopback_params {
	uint32_t size;
	const struct loopback_ops *ops; /* NULL: host memory */
	/* The all_gather that fails: of this rank, counted from 1; 0: none. */
	uint32_t fail_rank;
	uint64_t fail_call;
};

/* Runs every rank in a thread of its own and waits for them. */
void loopback_run(const struct loopback_params *params, loopback_rank *run,
		  void *arg, struct loopback_result *results);

#endif
