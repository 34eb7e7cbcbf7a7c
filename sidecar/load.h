/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of the jobs, in their threads: a checkpoint becomes a generation,
 * a generation is read back, a generation is freed.
 */
#ifndef ENGRAMD_LOAD_H
#define ENGRAMD_LOAD_H

#include "config.h"
#include "generation.h"
#include "jobs.h"
#include "memory.h"
#include "spec.h"
#include "watch.h"

/* What a load needs to know; owned by the loop, lent to the thread. */
struct load {
	const char *instance;
	struct engram_backing backing;
	enum memory_lock lock;
	struct loader_options options;
	struct memory_ledger *ledger;
	struct table_spec *spec;
	uint64_t number; /* of the generation to build */
	enum adopt_mode adopt;
	bool adopt_only; /* and do not read the checkpoint's records */
	/* a reload: the generation there is, which `gen` shall replace */
	struct generation *current;
	bool force;	/* even if the checkpoint is what it was */
	bool fit;	/* it is lent: the new one has to fit its clients */
	bool look_only; /* up to where the old one has to go first */
	bool in_place;	/* the new one goes into the old one's memory: */
	struct generation *over; /* which nobody reads any more; what of its
				  * layers is overwritten has no writer then */

	struct watch_identity found; /* before anything was read */
	struct generation *gen;	     /* the result, on ENGRAM_OK */
	bool unchanged;		     /* or this: there is nothing to do */
};

/* All layers are published or none.  Progress is over all layers: they are
 * read first, then verified. */
enum engram_status load_build(struct load *load, struct job *job,
			      struct engram_error *err);

/* Pin all of it, or nothing.  MEMORY_LOCK_TRY goes on without, and logs it. */
enum engram_status load_lock(struct generation *gen, enum memory_lock lock,
			     struct job *job, struct engram_error *err);

/* The same for a generation that has no pages yet: each is pinned when it is
 * faulted in, and no pass over all is needed.  *later: this kernel can not, and
 * load_lock is due when they are there. */
enum engram_status load_lock_ahead(struct generation *gen,
				   enum memory_lock lock, bool *later,
				   struct engram_error *err);

/* ENGRAM_ECANCELED if somebody has asked for it. */
enum engram_status load_canceled(struct job *job, struct engram_error *err);

struct manifest;

/* The checkpoint's manifest, as the table wants it; its files are those of the
 * checkpoint.  Without one, *found is false. */
enum engram_status load_manifest_read(const struct config_table *table,
				      const struct checkpoint *checkpoint,
				      struct manifest *manifest, bool *found,
				      struct engram_error *err);
/* Are the checksums of a generation still those of the manifest beside its
 * checkpoint?  ENGRAM_ESOURCECHANGED. */
enum engram_status load_compare_manifest(const struct generation *gen,
					 struct engram_error *err);

/* Read every layer of the first `copies` back and compare with its checksums;
 * not of copies that are missing. */
enum engram_status load_verify(const struct generation *gen, uint32_t copies,
			       uint32_t threads, struct job *job,
			       struct engram_error *err);

/* The segment of one layer, for the node that it is for. */
enum engram_status load_create(const struct load *load,
			       const struct engram_segment_spec *spec,
			       struct generation *gen,
			       struct generation_layer *layer,
			       struct engram_error *err);

/* Fill the copies of this mask, whose segments are made, from the first that is
 * not in it, and check what came there. */
enum engram_status load_replicate(const struct load *load,
				  struct generation *gen, uint64_t copies,
				  struct job *job, struct engram_error *err);

/*
 * Make the copies that were missing in a generation that is taken over, and
 * publish them; specs are those of its layers.  On an error the generation is
 * the caller's to leave or to free, and what was there is as it was.
 * ENGRAM_ECHECKSUM: what was copied from is damaged.
 */
enum engram_status load_mend(const struct load *load,
			     const struct engram_segment_spec *const *specs,
			     struct generation *gen, struct job *job,
			     struct engram_error *err);

#endif
