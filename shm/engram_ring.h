/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: through which a client has engramd's threads gather rows.
 *
 * A memory file of fixed size that the client makes, so that it is charged to
 * the client, stays registered with its devices through restarts of engramd,
 * and can be handed to the next engramd.  engramd maps it.
 *
 *	header		what the client says of it; engramd reads it once
 *	slots		for each: a post, an answer, and flags
 *	ids		for each slot: uint64 [max_rows]
 *	rows		for each slot: [max_rows], row_stride bytes each
 *
 * A batch is posted in a slot: its ids and the words of the post, each with the
 * batch's sequence number in its upper half.  So they may be stored in any
 * order and by any number of threads of a device, without a fence: engramd
 * believes a word once it has the number.  It copies the rows, `flag_rows` at a
 * time, and raises the flag of each such chunk, those of the first rows first;
 * once all are raised and nobody of its threads touches the slot any more,
 * `finished` becomes the sequence number.
 *
 * Sequence numbers are 1..ENGRAM_RING_SEQ_MAX, in turn, and are never taken
 * from the ring: the client keeps its own, so that the replay of a CUDA graph
 * counts on.  A flag holds the number of its batch.  What is older, or zeros,
 * is not mistaken for an answer, nor for a post.
 *
 * A slot may be posted to only if every chunk of its last post has been
 * answered (ENGRAM_RING_ROWS, ENGRAM_RING_REFUSED: engramd is done with it), or
 * if `finished` is the number of that post: else a thread of engramd, stopped
 * for however long, may still write there.  A client that has waited long
 * enough gives the chunks up and reads the rows itself; until engramd has
 * caught up, or is another one, it posts no more.  It may write ids: of a batch
 * whose ids are a later one's, engramd refuses what it has not copied.
 *
 * Nobody believes the other: engramd reads each word of a post once and
 * bounds it; a client that is given wrong rows has believed its engramd as it
 * does for the table itself.
 */
#ifndef ENGRAM_RING_H
#define ENGRAM_RING_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENGRAM_RING_MAGIC     UINT64_C(0x31474e524d524745) /* "EGRMRNG1" */
#define ENGRAM_RING_VERSION   2u
#define ENGRAM_RING_SLOTS     8u   /* at most, of one ring */
#define ENGRAM_RING_FLAGS     256u /* chunks of a batch, at most */
#define ENGRAM_RING_FLAG_UNIT 8u   /* flag_rows is a multiple of it */
#define ENGRAM_RING_ROWS_MAX  (UINT32_C(1) << 22)
#define ENGRAM_RING_ROW_MAX   (UINT32_C(1) << 17) /* bytes of a row */
#define ENGRAM_RING_SEQ_MAX   ((UINT32_C(1) << 30) - 1)
#define ENGRAM_RING_LINE      64u
#define ENGRAM_RING_BYTES_MAX (UINT64_C(1) << 40)
#define ENGRAM_RING_CHOICES   16u

/* What a flag says of its chunk, in the low two bits. */
enum engram_ring_result {
	ENGRAM_RING_PENDING = 0,
	ENGRAM_RING_ROWS = 1,	 /* the rows are in the ring */
	ENGRAM_RING_REFUSED = 2, /* engramd has no such rows, see below */
	ENGRAM_RING_GIVEN_UP = 3 /* by the client */
};

/* What a client has done, as it says: for people to see. */
struct engram_ring_counts {
	uint64_t fallback; /* rows that it read itself, engramd being late */
	uint64_t failed;   /* rows that nobody could read */
	/* rows that were looked for in a cache of its own, or twice in a batch
	 * (engram_cuda_sieve.h); were in the cache; in the batch before; and
	 * taken by the cache */
	uint64_t cache_lookups, cache_hits, repeats, cache_fills;
	uint64_t reserved[2];
};

/* Which way a client takes for batches of about so many rows, as it has
 * measured: for people to see.  Nanoseconds of a batch; 0: not measured. */
struct engram_ring_choice {
	uint32_t rows;	  /* 0: no choice */
	uint32_t path;	  /* enum engram_cuda_path */
	uint32_t own_ppt; /* thousandths that its device reads itself */
	uint32_t uva_ns, host_ns, hybrid_ns;
};

struct engram_ring_header { /* 4096 bytes with what follows */
	uint64_t magic;
	uint32_t version;
	uint32_t slots;
	uint32_t max_rows;  /* of a batch */
	uint32_t row_bytes; /* codes, then scales, as a packed record */
	uint64_t reserved[5];
	/* a line of its own: engramd's threads sleep, and look only now and
	 * then: tell it (gather.wake) that something comes */
	uint32_t asleep;
	uint32_t reserved2[15];
	/* a line of its own: non-zero while the client sleeps on a flag */
	uint32_t waiting;
	uint32_t reserved3[15];
	struct engram_ring_counts counts;
	struct engram_ring_choice choices[ENGRAM_RING_CHOICES];
};

/* A word of a post, and an id: stored whole. */
#define ENGRAM_RING_WORD(seq, value) ((uint64_t)(seq) << 32 | (uint32_t)(value))

enum engram_ring_post_word {
	ENGRAM_RING_NUM_ROWS,
	ENGRAM_RING_FLAG_ROWS,
	ENGRAM_RING_LAYER_ID,
	ENGRAM_RING_GENERATION, /* its low half */
	ENGRAM_RING_POST_WORDS
};

struct engram_ring_words { /* a line; the client writes */
	uint64_t words[ENGRAM_RING_POST_WORDS];
	uint64_t reserved[8 - ENGRAM_RING_POST_WORDS];
};

/* The same, read: the rows wanted are those of one layer of one generation, or
 * none.  Ids outside the rows that the lease maps, -1 among them, give zeros.
 */
struct engram_ring_post {
	uint32_t generation; /* low half */
	int32_t layer_id;
	uint32_t num_rows;  /* 1..max_rows */
	uint32_t flag_rows; /* of a chunk */
	uint32_t seq;
};

struct engram_ring_answer { /* a line; engramd writes */
	uint32_t finished;
	uint32_t reserved[15];
};

struct engram_ring_flag { /* a line; both write */
	uint32_t value;	  /* seq << 2 | enum engram_ring_result */
	uint32_t reserved[15];
};

struct engram_ring_slot {
	struct engram_ring_words post;
	struct engram_ring_answer answer;
	struct engram_ring_flag flags[ENGRAM_RING_FLAGS];
};

/* What determines where everything is. */
struct engram_ring_shape {
	uint32_t slots;	    /* 1..ENGRAM_RING_SLOTS */
	uint32_t max_rows;  /* 1..ENGRAM_RING_ROWS_MAX */
	uint32_t row_bytes; /* 1..ENGRAM_RING_ROW_MAX */
};

/* A mapping, with what is true of it whatever the memory says. */
struct engram_ring {
	char *base;
	uint64_t bytes;
	struct engram_ring_shape shape;
	uint32_t row_stride; /* row_bytes, to the next multiple of 8 */
	uint64_t slots_offset;
	uint64_t ids_offset, ids_bytes;	  /* of a slot */
	uint64_t rows_offset, rows_bytes; /* of a slot; multiples of 4096 */
};

/* Fill in all but `base`.  ENGRAM_EINVAL for a shape out of its bounds. */
enum engram_status engram_ring_plan(const struct engram_ring_shape *shape,
				    struct engram_ring *out,
				    struct engram_error *err);

/*
 * Client: make, size, seal and map a ring, its pages in place.  *fd, CLOEXEC,
 * is what engramd gets and what it gets again after a restart.
 * ENGRAM_EINVAL, ENGRAM_ENOMEM, ENGRAM_ESYS.
 */
enum engram_status engram_ring_create(const struct engram_ring_shape *shape,
				      struct engram_ring *out, int *fd,
				      struct engram_error *err);
/*
 * engramd: map the ring behind a descriptor that a client has sent; fd is not
 * kept.  ENGRAM_EINVAL for a file that could change its size or is no memory
 * file, ENGRAM_EVERSION, ENGRAM_EDAMAGED when the header contradicts the file.
 */
enum engram_status engram_ring_map(int fd, struct engram_ring *out,
				   struct engram_error *err);
/* Of either; does nothing to a zeroed structure. */
void engram_ring_unmap(struct engram_ring *ring);

static inline struct engram_ring_header *engram_ring_header(
	const struct engram_ring *ring)
{
	return (struct engram_ring_header *)ring->base;
}
static inline struct engram_ring_slot *engram_ring_slot(
	const struct engram_ring *ring, uint32_t slot)
{
	return (struct engram_ring_slot *)(ring->base + ring->slots_offset) +
	       slot;
}
/* ENGRAM_RING_WORD each: an id alone is every second int32. */
static inline uint64_t *engram_ring_ids(const struct engram_ring *ring,
					uint32_t slot)
{
	return (uint64_t *)(ring->base + ring->ids_offset +
			    slot * ring->ids_bytes);
}
static inline void *engram_ring_row(const struct engram_ring *ring,
				    uint32_t slot, uint64_t row)
{
	return ring->base + ring->rows_offset + slot * ring->rows_bytes +
	       row * ring->row_stride;
}

static inline uint32_t engram_ring_next_seq(uint32_t seq)
{
	return seq < ENGRAM_RING_SEQ_MAX ? seq + 1 : 1;
}
/* Is number a from before number b?  Of two that are not half the way round
 * apart. */
static inline int engram_ring_seq_before(uint32_t a, uint32_t b)
{
	uint32_t distance = (b - a) & ENGRAM_RING_SEQ_MAX;

	return distance && distance < ENGRAM_RING_SEQ_MAX / 2;
}
static inline uint32_t engram_ring_flag_of(uint32_t seq,
					   enum engram_ring_result result)
{
	return seq << 2 | (uint32_t)result;
}

/* ---- the client's side ---- */

/* Has engramd let go of the slot, if its last post was `seq` (0: none)?  A
 * moment after the last flag. */
int engram_ring_idle(const struct engram_ring *ring, uint32_t slot,
		     uint32_t seq);
/* Rows of a chunk so that a batch has at most `flags` of them. */
uint32_t engram_ring_flag_rows(uint32_t num_rows, uint32_t flags);
/* Post; the ids are in place, or come.  `post->seq` is the next of the slot. */
void engram_ring_post(const struct engram_ring *ring, uint32_t slot,
		      const struct engram_ring_post *post);
/* What has become of a chunk: acquire order, so that with ENGRAM_RING_ROWS
 * its rows may be read. */
enum engram_ring_result engram_ring_look(const struct engram_ring *ring,
					 uint32_t slot, uint32_t flag,
					 uint32_t seq);
/*
 * Wait for a chunk until `deadline_ns` of CLOCK_MONOTONIC: spins for a while,
 * then sleeps.  Then gives it up, unless it has come in that very moment.
 * Never ENGRAM_RING_PENDING.
 */
enum engram_ring_result engram_ring_await(const struct engram_ring *ring,
					  uint32_t slot, uint32_t flag,
					  uint32_t seq, uint64_t deadline_ns);

/* ---- engramd's side ---- */

/* The number of the last post: acquire order. */
uint32_t engram_ring_posted(const struct engram_ring *ring, uint32_t slot);
enum engram_ring_posting {
	ENGRAM_RING_NOT_WHOLE, /* words of it are still to come */
	ENGRAM_RING_UNSOUND,   /* not as it must be (num_rows, flag_rows, seq):
				* *out is what can be answered all the same */
	ENGRAM_RING_SOUND
};
/* Read a post once. */
enum engram_ring_posting engram_ring_read_post(const struct engram_ring *ring,
					       uint32_t slot,
					       struct engram_ring_post *out);
/* The number of the batch that the id of that row is of. */
static inline uint32_t engram_ring_id_seq(const struct engram_ring *ring,
					  uint32_t slot, uint32_t row)
{
	return (uint32_t)(__atomic_load_n(&engram_ring_ids(ring, slot)[row],
					  __ATOMIC_RELAXED) >>
			  32);
}
static inline uint32_t engram_ring_flags(const struct engram_ring_post *post)
{
	return (post->num_rows - 1) / post->flag_rows + 1;
}
/* Raise a flag, with release order, and wake the client if it sleeps; a chunk
 * that the client has given up stays so. */
void engram_ring_answer(const struct engram_ring *ring, uint32_t slot,
			uint32_t flag, uint32_t seq,
			enum engram_ring_result result);
/* All flags are raised and nobody of engramd will touch the slot again; of
 * batches that are finished out of turn the later one counts. */
void engram_ring_finish(const struct engram_ring *ring, uint32_t slot,
			uint32_t seq);
/* A ring that this engramd has just been given: nothing is under way. */
void engram_ring_reset(const struct engram_ring *ring);
void engram_ring_set_asleep(const struct engram_ring *ring, uint32_t asleep);

#ifdef __cplusplus
}
#endif
#endif
