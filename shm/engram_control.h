/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control page: /engramd.<instance>.ctl, written by engramd, mapped
 * read-only by clients, readable while the daemon hangs.
 *
 * It tells a client without a system call which generation of each table is
 * current and whether the sidecar is another one than before.  The lock on
 * the page (flock) is what makes an engramd the owner of its instance name;
 * the kernel lets go of it however the owner dies.
 *
 * Plain fields are written before abi_version and never change; fields
 * marked "atomic" go through the accessors below.
 */
#ifndef ENGRAM_CONTROL_H
#define ENGRAM_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENGRAM_CONTROL_MAGIC  UINT64_C(0x3154434d47524e45) /* "ENRGMCT1" */
#define ENGRAM_CONTROL_TABLES 64

enum engram_table_state {
	ENGRAM_TABLE_ABSENT = 0,
	ENGRAM_TABLE_LOADING = 1,
	ENGRAM_TABLE_VERIFYING = 2,
	ENGRAM_TABLE_READY = 3,
	ENGRAM_TABLE_DRAINING = 4,
	ENGRAM_TABLE_FAILED = 5
};

/* "absent", "loading", ...; "unknown" for other values. */
const char *engram_table_state_name(enum engram_table_state state);

struct engram_control_table {		/* 256 bytes */
	char name[ENGRAM_NAME_MAX + 1]; /* "" is a free slot */
	uint64_t generation;	 /* atomic: the current one, 0 for none */
	uint32_t state;		 /* atomic: enum engram_table_state */
	uint32_t leases;	 /* atomic: of all generations */
	uint64_t bytes_total;	 /* atomic: of the load that runs or ran last */
	uint64_t bytes_done;	 /* atomic */
	uint64_t content_id[2];	 /* of `generation`: engram_control_current */
	uint64_t loads;		 /* atomic: completed since boot */
	uint64_t load_failures;	 /* atomic */
	uint64_t sequence;	 /* atomic: odd while the generation and its
				  * content id change, never the same again */
	uint64_t bytes_verified; /* atomic: of that load, read back */
	uint64_t load_rate; /* atomic: bytes a second of that load, in what it
			     * does now; 0: none runs */
	uint64_t reserved[13];
};

struct engram_control_page {
	uint64_t magic;
	uint32_t abi_version; /* stored last, with release order */
	uint32_t page_bytes;  /* sizeof(struct engram_control_page) */
	char instance[ENGRAM_NAME_MAX + 1];
	uint64_t boot_epoch;   /* atomic: random at each start, 0 when down */
	int32_t pid;	       /* of the sidecar, in its own PID namespace */
	uint32_t num_tables;   /* slots: ENGRAM_CONTROL_TABLES */
	int64_t start_ns;      /* CLOCK_REALTIME of the start */
	uint64_t heartbeat_ns; /* atomic: CLOCK_MONOTONIC, each second */
	uint64_t connections;  /* atomic: open now */
	uint64_t requests;     /* atomic: served since boot */
	uint64_t reserved[15];
	struct engram_control_table tables[ENGRAM_CONTROL_TABLES];
};

static inline uint64_t engram_control_load64(const uint64_t *field)
{
	return __atomic_load_n(field, __ATOMIC_ACQUIRE);
}
static inline uint32_t engram_control_load32(const uint32_t *field)
{
	return __atomic_load_n(field, __ATOMIC_ACQUIRE);
}
static inline void engram_control_store64(uint64_t *field, uint64_t value)
{
	__atomic_store_n(field, value, __ATOMIC_RELEASE);
}
static inline void engram_control_store32(uint32_t *field, uint32_t value)
{
	__atomic_store_n(field, value, __ATOMIC_RELEASE);
}
/* Nothing stored from here on is seen without what was stored before: a
 * release store alone lets later stores pass it. */
static inline void engram_control_order_stores(void)
{
	__atomic_thread_fence(__ATOMIC_RELEASE);
}
static inline void engram_control_add64(uint64_t *field, int64_t delta)
{
	__atomic_fetch_add(field, (uint64_t)delta, __ATOMIC_RELAXED);
}

/*
 * engramd: take the instance's name (flock; ENGRAM_EBUSY with the other's
 * pid if it is taken), create or take over the page in place, and write it
 * afresh with the new epoch.  With a memfd backing the page has no lock, and
 * no name but that under which backing->keeper has it.  Closing releases the
 * lock; `remove` unlinks the name first.
 */
struct engram_control_owner;
enum engram_status engram_control_own(const struct engram_backing *backing,
				      const char *instance,
				      struct engram_control_owner **out,
				      struct engram_error *err);
/*
 * The same, but only to remove what a dead owner has left: the page is neither
 * written nor mapped, which takes no memory where there may be none.
 */
enum engram_status engram_control_claim(const struct engram_backing *backing,
					const char *instance,
					struct engram_control_owner **out,
					struct engram_error *err);
struct engram_control_page *engram_control_owner_page(
	struct engram_control_owner *owner);
/* A new read-only descriptor, CLOEXEC. */
enum engram_status engram_control_reopen(
	const struct engram_control_owner *owner, int *fd,
	struct engram_error *err);
void engram_control_disown(struct engram_control_owner *owner, int remove);

/* Is some process the owner of this instance's name now?  A page that is
 * not there has none. */
enum engram_status engram_control_owned(const struct engram_backing *backing,
					const char *instance, int *owned,
					struct engram_error *err);

/* Clients: check and map read-only the page behind fd; fd is not kept.
 * The same errors as engram_segment_map_fd. */
enum engram_status engram_control_map_fd(int fd,
					 const struct engram_control_page **out,
					 struct engram_error *err);
void engram_control_unmap(const struct engram_control_page *page);

/*
 * engramd: show a generation and its content id (XXH3-128, low word first), or
 * with generation 0 none.  Who reads the generation alone sees the one before
 * until it sees this one, and never neither; a generation may come back, so
 * the two are read together by engram_control_current.
 */
void engram_control_publish(struct engram_control_table *slot,
			    uint64_t generation, const uint64_t content_id[2]);
/* engramd: make a slot that shows no generation free for another table. */
void engram_control_clear(struct engram_control_table *slot);

/* The current generation of the table called `name`, 0 for none; no system
 * call.  Slots are given to other tables, by this sidecar and the next. */
uint64_t engram_control_generation(const struct engram_control_page *page,
				   const char *name);
/* The same, with its content id.  Returns 0, and sets all to 0, when there is
 * none, or when the sidecar died while it changed them: the next one will
 * tell. */
int engram_control_current(const struct engram_control_page *page,
			   const char *name, uint64_t *generation,
			   uint64_t content_id[2]);

#ifdef __cplusplus
}
#endif
#endif
