/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One generation of a table in memory: its published segments, and who uses
 * it.  Built in a load job's thread, then handed to the loop; immutable from
 * there on but for what is the loop's.
 */
#ifndef ENGRAMD_GENERATION_H
#define ENGRAMD_GENERATION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engram_kernels.h"
#include "engram_segment.h"
#include "loader.h"

struct generation_layer {
	int32_t layer_id;
	uint32_t replica; /* as in struct engram_segment_spec */
	struct engram_segment_writer *writer;
	const struct engram_segment_header *header; /* in the mapping */
	int fd; /* read-only, what clients get; -1 before it is published */
	_Atomic uint64_t huge_bytes; /* mapped by huge pages; UINT64_MAX: not
				      * known */
	uint64_t node_bytes[ENGRAM_NODES]; /* on each node of memory; all 0:
					    * not known */
};

struct table;
struct table_spec;

struct generation {
	uint64_t number;
	/* All layers, of one copy after the other: [num_copies][num_layers].
	 * What is said of a layer is said of the first copy's. */
	struct generation_layer *layers;
	uint32_t num_layers;
	uint32_t num_copies;   /* one for each node, or one in all */
	uint32_t num_segments; /* num_copies * num_layers */
	/* For each node of memory, the copy that is nearest. */
	uint8_t nearest[ENGRAM_NODES];
	uint64_t bytes;		/* of memory, all segments */
	uint64_t content_id[2]; /* XXH3-128 of the layers' content ids */
	_Atomic bool locked;
	bool adopted;		     /* not loaded by this process */
	struct loader_report report; /* of all layers together */
	char huge_advice[256]; /* what would give more huge pages, or "" */
	char not_adopted[256]; /* why it was loaded though a former engramd had
				* left the table, or "" */

	/* ---- the loop's ---- */
	struct table *table;
	struct table_spec *spec; /* what it was built from; a reference */
	/* Leases, unsent replies that need the descriptors, and jobs that read
	 * it.  `idle` is called when the last one goes that is not parked. */
	unsigned int users;
	unsigned int copy_leases[ENGRAM_NODES]; /* of each copy */
	unsigned int leases;			/* of these */
	unsigned int parked;   /* of these: nobody reads by them */
	uint64_t untracked_ns; /* clock_ns() since when somebody may read it
				* without a lease: it was adopted, or a lease
				* ended by itself; 0: nobody does */
	void (*idle)(struct generation *gen);
	/* of one that is lent no more (table_generations.c) */
	TAILQ_ENTRY(generation) entry;
	uint64_t since_ns; /* when it was superseded */
	bool unwanted;	   /* it is not kept for a rollback */
	bool overdue;	   /* it is reported that it is still held */
	struct job *freeing;
};

TAILQ_HEAD(generation_list, generation);

/* `backing` says how many copies, and for which nodes; NULL without memory. */
struct generation *generation_new(uint64_t number, uint32_t num_layers,
				  const struct engram_backing *backing);
/* The layers of a copy. */
struct generation_layer *generation_copy(const struct generation *gen,
					 uint32_t copy);
/* The first copy of which every layer has a segment, or NULL: some are missing
 * while a generation is taken over. */
struct generation_layer *generation_whole(const struct generation *gen);
/* Let go of every segment, and remove it or, with `leave`, keep what was
 * published for a later engramd to adopt: takes long, never in the loop. */
void generation_release(struct generation *gen, bool leave);
/* What is left then, the loop's references too. */
void generation_delete(struct generation *gen);
/* Both, for one that the loop does not know yet.  NULL is allowed. */
void generation_free(struct generation *gen);
void generation_leave(struct generation *gen);

/* The content id of all layers, which are published, and the descriptors of all
 * segments that are there. */
enum engram_status generation_identify(struct generation *gen,
				       struct engram_error *err);

/*
 * Can who holds `gen` change over to a layer of this header, with so long a
 * token map, at `index`?  Row counts, primes, multipliers and contents may
 * differ; what sizes and strides of requests follow from may not.
 * ENGRAM_EGEOMETRY says what differs.
 */
enum engram_status generation_fits(const struct generation *gen, uint32_t index,
				   const struct engram_segment_header *h,
				   uint64_t token_map_len,
				   struct engram_error *err);

void generation_get(struct generation *gen);
void generation_put(void *gen);

/* A layer has got its writer: its header is that, its bytes are the
 * generation's. */
void generation_count_layer(struct generation *gen,
			    struct generation_layer *layer);

/* The whole of a layer as the loader's and the verifier's view. */
void generation_layer_map(const struct generation_layer *layer,
			  struct engram_segment_map *map);
/* Some of its rows, for the kernels. */
void generation_layer_rows(const struct generation_layer *layer,
			   int64_t row_begin, int64_t row_end,
			   struct engram_rows *rows);

#endif
