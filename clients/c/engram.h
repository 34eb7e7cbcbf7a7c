/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libengram: attach to a table that engramd holds, and use it.
 *
 *	engram_client *c;
 *	engram_table *t;
 *
 *	engram_open(NULL, &c);
 *	engram_attach(c, &(struct engram_attach_params){.table = "demo"}, &t);
 *	engram_hash(t, &batch, ids);
 *	engram_lookup(t, 0, &args, rows);
 *	engram_detach(t);
 *	engram_close(c);
 *
 * Ownership: what a function hands out through `out` is the caller's until
 * the function named with it takes it back.  Strings returned belong to the
 * handle and live as long as it.
 *
 * Threads: calls on one engram_client are serialised inside; any thread may
 * make them.  Calls that only read an engram_table (hash, lookup, info, ...)
 * run in any number of threads at once, without a lock or a system call;
 * engram_detach must be the last.
 *
 * Fork: a child can not use its parent's handles; every call gives
 * ENGRAM_EINVAL there, and neither the connection nor the memory is inherited.
 *
 * Errors: every function returns an enum engram_status.  engram_last_error
 * gives the message, its causes and the fix for the calling thread's last
 * failed call.
 */
#ifndef ENGRAM_H
#define ENGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_geometry.h"
#include "engram_kernels.h"
#include "engram_status.h"

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

#define ENGRAM_VERSION_MAJOR 0
#define ENGRAM_VERSION_MINOR 1
#define ENGRAM_VERSION_PATCH 0

/* "0.1.0" of the library in use. */
const char *engram_version(void);

typedef struct engram_client engram_client;
typedef struct engram_table engram_table;

/* ---- errors ---- */

/* The calling thread's last failure in this library, with all its fields;
 * never NULL, status ENGRAM_OK when there was none.  Valid until the
 * thread's next call. */
const struct engram_error *engram_last_error(void);
/* For libraries above this one: make *err the calling thread's last failure.
 * Returns its status. */
enum engram_status engram_set_last_error(const struct engram_error *err);

/* ---- the connection, which is the lease ---- */

struct engram_open_params {
	const char *socket;  /* NULL: $ENGRAMD_SOCKET, else
			      * /run/engramd/default.sock */
	const char *name;    /* how `engramctl clients` shows this client;
			      * NULL: the program's name */
	int connect_wait_ms; /* keep trying that long for the sidecar to come
			      * up, with back-off; 0 = once, -1 = for ever */
	int call_timeout_ms; /* for one answer; 0 = 30 s, -1 = for ever */
};

/* NULL params are all defaults. */
enum engram_status engram_open(const struct engram_open_params *params,
			       engram_client **out);

/* Detach first: tables of a closed client are ENGRAM_EBUSY here.  NULL is
 * allowed.  The sidecar drops whatever the connection leased. */
enum engram_status engram_close(engram_client *client);

/* The sidecar met at the last connect: engram_attach and engram_table_prepare
 * connect anew when the connection was lost.  Subscriptions to events end with
 * the connection; the version is valid until the next connect. */
uint64_t engram_boot_epoch(const engram_client *client);
const char *engram_server_version(const engram_client *client);

/*
 * Any method of the control protocol (sidecar/PROTOCOL.md): params and
 * result are JSON texts; params may be NULL.  *result is malloc'd, freed with
 * engram_free.  A product error comes back as its status.
 */
enum engram_status engram_call(engram_client *client, const char *method,
			       const char *params, char **result);

/*
 * The next notification after events.subscribe: {"method", "params"} as JSON
 * text, freed with engram_free.  ENGRAM_ETIMEDOUT when none came in timeout_ms
 * (-1 = wait).  At most 1024 (or 4 MiB) are kept; when older ones had to go,
 * the next is {"method": "event.lost", "params": {"count": N}}.
 */
enum engram_status engram_next_event(engram_client *client, int timeout_ms,
				     char **event);
void engram_free(void *text);

/* ---- attaching ---- */

struct engram_attach_params {
	const char *table;
	const int32_t *layers; /* layer ids to map; NULL: all of the table */
	uint32_t num_layers;
	uint32_t tp_rank; /* this rank maps the rows of its heads only */
	uint32_t tp_size; /* 0 and 1: one rank, all heads */
	/*
	 * Map the rows for writing too.  Only for registering them with a
	 * device that can register nothing else; engram_protect comes right
	 * after.  Nobody may write: the memory is that of every process that
	 * is attached.  engramd gives it to those who may change tables
	 * (access.change of its configuration), else ENGRAM_EPERM, and can not
	 * with the memfd backing, ENGRAM_EUNSUPPORTED.
	 */
	int writable;
	/* Of a table that has a copy on each node of memory (memory.numa of
	 * engramd's configuration is "replicate"), the copy that is nearest to
	 * `node`, if choose_node is not 0; else one that is near the cores that
	 * this process may run on.  A refresh stays on the node. */
	int choose_node;
	int32_t node; /* 0..63, as numactl --hardware shows them */
};

/*
 * All or nothing: when the answer and the segments disagree, nothing stays
 * mapped and no lease is held (ENGRAM_EPROTOCOL, ENGRAM_EDAMAGED).  When this
 * process is out of descriptors (ENGRAM_ESYS with EMFILE) the connection is
 * closed with it.  ENGRAM_ENOTREADY, ENGRAM_ENOTFOUND, ENGRAM_ESHARD as the
 * sidecar says.
 */
enum engram_status engram_attach(engram_client *client,
				 const struct engram_attach_params *params,
				 engram_table **out);
/*
 * Make all rows that were attached writable read-only in this process, as they
 * are otherwise; what is registered stays so.  Again, or after an attach that
 * was read-only, it changes nothing.  After an error (ENGRAM_ENOMEM,
 * ENGRAM_ESYS) some rows may be writable still.
 */
enum engram_status engram_protect(engram_table *table);
/* Unmap and let go of the lease, without waiting for an answer.  Succeeds
 * when the sidecar is gone.  NULL is allowed. */
enum engram_status engram_detach(engram_table *table);

struct engram_table_info {
	const char *name;
	uint64_t generation;
	uint64_t boot_epoch;
	char content_id[33]; /* 128 bits in hex, NUL: equal for equal bytes of
			      * all layers; goes into prefix-cache salts */
	uint32_t num_layers; /* attached */
	uint32_t tp_rank, tp_size;
	uint32_t num_cols;    /* hash columns = heads of all ranks */
	uint32_t local_heads; /* of this rank, padding included */
	uint32_t dim;
	uint32_t max_ngram, num_heads;
	int32_t pad_id;	       /* compressed */
	int64_t token_map_len; /* 0: the table has none, and can not hash */
	uint64_t mapped_bytes;
	int32_t node; /* of memory that the copy is for; -1: there is one */
};
enum engram_status engram_table_info(const engram_table *table,
				     struct engram_table_info *out);

/* The generation that is current now, from the control page, without a
 * system call; 0 if the sidecar withdrew the table, has stopped, or is another
 * process than the one attached to.  What is mapped stays readable all the
 * same; see engram_table_prepare. */
uint64_t engram_table_poll(const engram_table *table);

/* ---- changing over to the next generation, or the next engramd ---- */

/*
 *	if (engram_table_poll(t) != generation) {		 each step
 *		status = engram_table_prepare(t, &next);	 any thread
 *		if (!status && next)
 *			status = engram_table_refresh(t, next);	 step boundary
 *	}
 *
 * After a reload, prepare leases and maps the generation that is current now
 * beside the one in use, and refresh changes over; ranks that share a step
 * first agree on what all have prepared.  After a restart of engramd both are
 * needed too, to lease the table anew: prepare then gives the same generation,
 * memory that engramd has adopted stays mapped where it is, and nothing is read
 * from elsewhere meanwhile.  A client that does neither goes on reading what it
 * has mapped.
 */

/*
 * *generation: what a refresh would change over to, 0 when that is what the
 * table has.  What was prepared before and is not current any more is let go
 * of.  Any thread, also while others use the table; takes as long as a call to
 * engramd, and at most a second to reconnect, which is tried with back-off:
 * ENGRAM_EDISCONNECTED at once between two tries.  ENGRAM_EDRAINING when the
 * table is withdrawn for an unload or a reload that waits for it: detach, and
 * attach once it is ready, or see engram_table_park.  ENGRAM_EGEOMETRY when the
 * sizes that callers go by differ: likewise.  After any error the table is as
 * it was.
 */
enum engram_status engram_table_prepare(engram_table *table,
					uint64_t *generation);
/* What is prepared, or NULL: for engram_table_info, engram_layer_info and
 * engram_hash_params, until the next prepare, swap, refresh or detach.  Where
 * memory stays mapped, its addresses are the table's own. */
const engram_table *engram_table_prepared(const engram_table *table);

/*
 * Change over to what is prepared: `generation`, or with 0 whatever is current,
 * which is then prepared here if need be; nothing happens if there is nothing
 * new.  No other call may use the table meanwhile, and rows, pointers and
 * views of before are invalid after.  ENGRAM_EGONE when `generation` is not
 * what is prepared; what engram_table_prepare says.  Opened gather handles
 * follow by themselves.
 */
enum engram_status engram_table_refresh(engram_table *table,
					uint64_t generation);
/* The same, but what was in use before stays mapped and leased in *old, to be
 * let go of by engram_detach once nobody reads it; NULL if nothing
 * happened.  *old shares its mappings with the table if memory stayed where it
 * was. */
enum engram_status engram_table_swap(engram_table *table, uint64_t generation,
				     engram_table **old);

/*
 * For tables whose reload.mode is "in_place", where two generations do not fit:
 * the next one is written into the memory that is mapped, and registered,
 * once everybody has stopped reading.
 *
 *	if (engram_table_poll(t) == 0) {			 each step
 *		status = engram_table_park(t);			 step boundary
 *		if (status)
 *			status = engram_detach(t);
 *	}
 *	... no step reads until prepare and refresh have succeeded ...
 *
 * Nothing reads rows, the token map, or pointers and views of the table when
 * this is called, nor after it, until engram_table_refresh: lookups are
 * ENGRAM_ENOTREADY meanwhile, and engram_table_prepare is ENGRAM_EDRAINING or
 * ENGRAM_ENOTREADY until the next generation is there; if the reload ends
 * before anything was written, it gives the same generation again.  What is
 * prepared is let go of.  The sidecar waits for everybody who has a lease, and
 * `reload.settle_seconds` for those whose connection was lost, or who have not
 * leased the table anew after a restart, counted from the loss if that is
 *later: poll at least that often, and if engram_table_prepare is called first,
 *stop reading when it takes that long, with a call_timeout_ms below it.
 * ENGRAM_EUNSUPPORTED when the table is unloaded, or reloaded in another mode:
 * nothing has changed, and detaching is what is waited for.  Calling it again
 * asks again.  Succeeds when the sidecar is gone.
 */
enum engram_status engram_table_park(engram_table *table);

/* ---- using it; `layer` is an index into the attached layers ---- */

/*
 * Memory that engram_attach has mapped, for registering it with a device:
 * address and bytes are multiples of the backing's page size (of the huge
 * page on hugetlbfs), so a neighbour's rows may be in the first and the last
 * page.
 */
struct engram_mapping {
	void *address;
	uint64_t bytes;
};

struct engram_layer_info {
	int32_t layer_id;
	struct engram_shard shard; /* heads and rows of this rank */
	struct engram_rows rows;   /* for the kernels of engram_kernels.h */
	uint64_t total_rows;	   /* of all ranks */
	/* What holds this rank's rows, valid until engram_detach.  Packed, or
	 * without scales: 1; split: 2, codes then scales; a rank without
	 * rows: 0. */
	struct engram_mapping mapping[2];
	uint32_t num_mappings;
};
enum engram_status engram_layer_info(const engram_table *table, uint32_t layer,
				     struct engram_layer_info *out);

/* Views into the mapping, valid until engram_detach.  ENGRAM_ENOTOKENMAP
 * when the table was loaded without a token map. */
enum engram_status engram_hash_params(const engram_table *table,
				      struct engram_hash_params *out);

/* out int32 [num_tokens, num_layers attached, num_cols]; with a slot cache
 * and a slot mapping in the batch, writes the batch's slots first. */
enum engram_status engram_hash(const engram_table *table,
			       const struct engram_hash_batch *batch,
			       int32_t *out);

/*
 * This rank's heads of the ids [num_tokens, num_cols]: out bf16
 * [num_tokens, local_heads, dim].  *misses, if not NULL, grows by the ids
 * that no row of this rank answers.
 */
enum engram_status engram_lookup(const engram_table *table, uint32_t layer,
				 const int32_t *ids, int64_t ids_token_stride,
				 int64_t ids_head_stride, int64_t num_tokens,
				 uint16_t *out, uint64_t *misses);

/* Stored bytes of `count` rows, codes then scales, record_bytes each (see
 * engram_record_bytes).  ENGRAM_EINVAL for a row of another rank. */
enum engram_status engram_read_rows(const engram_table *table, uint32_t layer,
				    const int64_t *rows, uint64_t count,
				    void *out);
uint64_t engram_record_bytes(const engram_table *table);

enum engram_status engram_gate(const struct engram_gate_args *args,
			       uint16_t *out);
enum engram_status engram_sp_rows(const struct engram_sp_rows_args *args,
				  uint16_t *out);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
