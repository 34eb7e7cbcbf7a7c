/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment: one layer of one table generation, in shared memory.
 *
 *   /engramd.<instance>.<table>.<layer>.g<generation>
 *
 *   0            struct engram_segment_header
 *   ...          the arrays it points to (see "blocks" below)
 *   data_offset  records, a multiple of 2 MiB from the start
 *   total_bytes  end; a multiple of 2 MiB
 *
 * A segment is written by one engramd, published whole under its name, and
 * immutable from then on, unless engramd writes the next generation into it
 * while all clients have parked (engram_segment_overwrite).  Everything is
 * little-endian; fields have fixed sizes and offsets (static assertions in
 * segment.c); unused bytes are zero. Readers check in this order: magic and
 * abi_version (stored last, with release order), sizes against the file,
 * header_checksum, state.
 */
#ifndef ENGRAM_SEGMENT_H
#define ENGRAM_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engram_error.h"
#include "engram_keeper.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENGRAM_SEGMENT_MAGIC UINT64_C(0x314753444d524745) /* "EGRMDSG1" */
#define ENGRAM_ABI_VERSION   2u
#define ENGRAM_SEGMENT_ALIGN (UINT64_C(2) << 20)
#define ENGRAM_CHUNK_BYTES   (UINT64_C(64) << 20)
#define ENGRAM_NAME_MAX	     63 /* of an instance or a table, in bytes */
#define ENGRAM_LAYERS_MAX    64 /* of one table */
#define ENGRAM_SEGMENT_CUTS  8

enum engram_record_layout {
	ENGRAM_PACKED = 1, /* code bytes then scale bytes, row by row */
	ENGRAM_SPLIT = 2   /* all codes [rows, dim], then all scales */
};

enum engram_dtype {
	ENGRAM_F8_E4M3 = 1, /* OCP fp8 e4m3fn, 1 byte a code */
	ENGRAM_BF16 = 2	    /* bfloat16, 2 bytes a code, little-endian */
};

enum engram_scale_scheme {
	ENGRAM_SCALE_NONE = 0,
	ENGRAM_SCALE_TENSOR = 1,     /* one fp32 for the whole table */
	ENGRAM_SCALE_UE8M0_BLOCK = 2 /* one exponent byte per block_size */
};

enum engram_segment_state {
	ENGRAM_SEGMENT_FILLING = 1,
	ENGRAM_SEGMENT_READY = 2
};

/* One file the records or the geometry came from. */
struct engram_segment_source {
	char name[192];	      /* relative to the checkpoint directory */
	uint64_t size;	      /* bytes */
	int64_t mtime_ns;     /* CLOCK_REALTIME nanoseconds */
	uint64_t header_hash; /* XXH3-64 of the safetensors header or of the
			       * whole file for JSON files */
	uint64_t inode;
};

/* A run of bytes inside the header region. */
struct engram_segment_block {
	uint64_t offset; /* from the start of the segment; 8-byte aligned */
	uint64_t count;	 /* elements */
};

struct engram_segment_header {
	/* 0: who it is */
	uint64_t magic;
	uint32_t abi_version;	  /* stored last */
	uint32_t state;		  /* enum engram_segment_state */
	uint64_t header_checksum; /* XXH3-64 of [0, data_offset) with magic,
				   * abi_version, state and this field 0 */
	uint64_t generation;	  /* counts from 1 for each table */
	uint64_t data_offset;
	uint64_t data_bytes; /* records; codes and scales together */
	uint64_t total_bytes;
	char instance[ENGRAM_NAME_MAX + 1];
	char table[ENGRAM_NAME_MAX + 1];

	/* 184: where a row is */
	int32_t layer_id;	/* as the model counts: 1, 14 */
	uint32_t layer_index;	/* position in the table's layer list */
	uint32_t record_layout; /* enum engram_record_layout */
	uint32_t dtype;		/* enum engram_dtype */
	uint32_t scale_scheme;	/* enum engram_scale_scheme */
	uint32_t dim;		/* elements of a row */
	uint32_t block_size;	/* elements that share a scale byte */
	float tensor_scale;	/* for ENGRAM_SCALE_TENSOR, else 1 */
	uint64_t rows;
	uint64_t code_stride;  /* bytes from one row's codes to the next */
	uint64_t scale_stride; /* likewise, of scales; 0 without any */
	uint64_t codes_offset; /* of row 0, from the start of the segment */
	uint64_t scales_offset;

	/* 256: how token ids become row numbers */
	uint32_t min_ngram;  /* 2 */
	uint32_t max_ngram;  /* 4: n-grams of 2..max_ngram tokens */
	uint32_t num_heads;  /* hash heads of each n-gram size */
	uint32_t num_cols;   /* (max_ngram - min_ngram + 1) * num_heads */
	int32_t pad_id;	     /* compressed */
	uint32_t raw_pad_id; /* as config.json says it */
	uint32_t compressed_vocab_size;
	uint32_t num_cuts;   /* of cut_ids */
	uint64_t prime_seed; /* engram_vocab_size */
	/* 296: blocks */
	struct engram_segment_block primes;	 /* int64 [num_cols] */
	struct engram_segment_block offsets;	 /* int64 [num_cols] */
	struct engram_segment_block multipliers; /* int64 [max_ngram] */
	struct engram_segment_block token_map;	 /* int32 [vocab]; may be 0 */
	struct engram_segment_block checksums;	 /* uint64 [chunks] */
	struct engram_segment_block sources; /* struct engram_segment_source */

	/* 392: what it is */
	uint64_t chunk_rows;	/* rows that one checksum covers */
	uint64_t content_id[2]; /* XXH3-128 of geometry and checksums:
				 * equal bytes give equal ids in any
				 * generation, layout and instance */
	int64_t created_ns;	/* CLOCK_REALTIME */
	/* compressed ids that n-grams of later tokens end before; zeros past
	 * num_cuts */
	int32_t cut_ids[ENGRAM_SEGMENT_CUTS];
	uint64_t reserved[4];
};

/*
 * Checksums are XXH3-64 of `chunk_rows` whole rows at a time, each row as
 * its code bytes followed by its scale bytes (the packed record), whatever
 * the record layout, so that both layouts have one content id.
 * chunk_rows is ENGRAM_CHUNK_BYTES / record bytes, rounded down, at least 1.
 */
static inline uint64_t engram_segment_record_bytes(
	const struct engram_segment_header *h)
{
	uint64_t codes = (uint64_t)h->dim * (h->dtype == ENGRAM_BF16 ? 2 : 1);
	uint64_t scales = h->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK
				  ? h->dim / h->block_size
				  : 0;

	return codes + scales;
}

/* The array at `block`, typed by the caller. */
static inline const void *engram_segment_at(
	const struct engram_segment_header *h,
	const struct engram_segment_block *block)
{
	return (const char *)h + block->offset;
}

/* ---- where segments live ---- */

enum engram_backing_kind {
	ENGRAM_BACKING_SHM = 1,	      /* files in /dev/shm or another tmpfs */
	ENGRAM_BACKING_HUGETLBFS = 2, /* files in a mounted directory */
	ENGRAM_BACKING_MEMFD = 3      /* no name; lives by its descriptors */
};

/* Transparent huge pages under what has small ones otherwise. */
enum engram_huge {
	ENGRAM_HUGE_TRY = 0,	 /* as many as can be had */
	ENGRAM_HUGE_REQUIRE = 1, /* ENGRAM_ENOSPACE if one can not be had */
	ENGRAM_HUGE_OFF = 2	 /* as the mount gives them */
};

#define ENGRAM_NODES 64

/* Which nodes of memory pages come from, on machines with several. */
enum engram_numa {
	ENGRAM_NUMA_LOCAL = 0,	    /* as the kernel does by itself */
	ENGRAM_NUMA_BIND = 1,	    /* these nodes and no others */
	ENGRAM_NUMA_INTERLEAVE = 2, /* these in turn, each 2 MiB */
	ENGRAM_NUMA_REPLICATE = 3,  /* one copy on each of these: for engramd,
				     * which makes a segment for each, BIND */
	ENGRAM_NUMA_PREFER = 4	    /* one node, others once it is full */
};

struct engram_backing {
	enum engram_backing_kind kind;
	char dir[192]; /* "/dev/shm", the mount point, or "" for memfd */
	enum engram_huge huge;
	uint64_t memfd_page; /* of hugetlb, for memfd; 0: ordinary memory */
	enum engram_numa numa;
	uint64_t nodes; /* bit n: node n.  All but LOCAL */
	/* Where memfds have names that outlive this process, or NULL: what is
	 * said below of names goes for them, too. */
	struct engram_keeper *keeper;
};

/*
 * Table names: 1..63 of [A-Za-z0-9_-] and inner single dots
 * ("deepseek-v4.1-flash"); "..", a leading or a trailing dot are refused.
 * Instance names: the same without any dot, so that a segment's name, read
 * from both ends, parses in one way only.
 */
int engram_name_valid(const char *name);
int engram_instance_valid(const char *name);

/* "engramd.<instance>.<table>.<layer>.g<generation>" into out[256]. */
void engram_segment_name(char out[256], const char *instance, const char *table,
			 int32_t layer_id, uint64_t generation);
/* The same of one of several copies, with ".n<node>" behind it; `replica` as in
 * struct engram_segment_spec. */
void engram_segment_copy_name(char out[256], const char *instance,
			      const char *table, int32_t layer_id,
			      uint64_t generation, uint32_t replica);

/* Room left in the backing, in bytes; ENGRAM_EUNSUPPORTED for memfd, which
 * has no limit of its own. */
enum engram_status engram_backing_room(const struct engram_backing *backing,
				       uint64_t *bytes,
				       struct engram_error *err);

/* How many more files it takes; UINT64_MAX where that is not limited. */
uint64_t engram_backing_files(const struct engram_backing *backing);

/* Size of its pages, which segments are whole numbers of; a small page's where
 * that can not be told. */
uint64_t engram_backing_page(const struct engram_backing *backing);

/* ---- writing (engramd only) ---- */

/* What the creator must know up front; arrays are copied. */
struct engram_segment_spec {
	const char *instance;
	const char *table;
	uint64_t generation;
	/* 0: the only copy; else one of several, and 1 + the node of memory
	 * that it is for, which its name tells. */
	uint32_t replica;
	/* geometry, hash parameters: taken from these fields of `head`:
	 * layer_id .. tensor_scale, rows, min_ngram .. prime_seed,
	 * cut_ids */
	struct engram_segment_header head;
	const int64_t *primes;	    /* [num_cols] */
	const int64_t *offsets;	    /* [num_cols] */
	const int64_t *multipliers; /* [max_ngram] */
	const int32_t *token_map;   /* [token_map_len] or NULL */
	uint64_t token_map_len;
	const struct engram_segment_source *sources;
	uint64_t num_sources;
};

/* A segment being written: private to one loader until published. */
struct engram_segment_writer;

/* Total bytes that a segment of this spec takes. */
enum engram_status engram_segment_plan(const struct engram_segment_spec *spec,
				       uint64_t *total_bytes,
				       struct engram_error *err);

/* The header that a segment of this spec begins with, but for names, time,
 * state, checksums and pages larger than usual. */
enum engram_status engram_segment_plan_header(
	const struct engram_segment_spec *spec, struct engram_segment_header *h,
	struct engram_error *err);

/*
 * Make the file under a temporary name (O_EXCL), size it, map it read-write,
 * shared, MADV_DONTFORK, and say which nodes its pages come from.  Allocates
 * only the header region; data pages come with engram_segment_reserve.  Mode
 * 0640, owner and group of the process.
 */
enum engram_status engram_segment_create(const struct engram_backing *backing,
					 const struct engram_segment_spec *spec,
					 struct engram_segment_writer **out,
					 struct engram_error *err);

/*
 * Allocate and fault in the pages of [offset, offset + bytes) of the segment,
 * so that a full file system is ENGRAM_ENOSPACE here and never a SIGBUS
 * later.  Any thread, ranges may touch; rounds outward to pages, huge ones if
 * backing.huge is not ENGRAM_HUGE_OFF.
 */
enum engram_status engram_segment_reserve(struct engram_segment_writer *w,
					  uint64_t offset, uint64_t bytes,
					  struct engram_error *err);

/*
 * How much of the segment this process has mapped, and how much of that by huge
 * pages of any kind: what the kernel says, not what was asked for.  Of pages
 * that were not touched here (engram_segment_adopt) nothing is known yet.
 * Takes milliseconds a GiB of small pages.
 */
enum engram_status engram_segment_huge(const struct engram_segment_writer *w,
				       uint64_t *mapped, uint64_t *huge,
				       struct engram_error *err);

/* Bytes of the segment that this process has mapped, by the node that they are
 * on: what the kernel says, not what was asked for. */
enum engram_status engram_segment_nodes(const struct engram_segment_writer *w,
					uint64_t bytes[ENGRAM_NODES],
					struct engram_error *err);

struct engram_segment_header *engram_segment_writer_header(
	struct engram_segment_writer *w);
/* checksum slots, to be filled by the loader: [chunks] */
uint64_t *engram_segment_writer_checksums(struct engram_segment_writer *w);
void *engram_segment_writer_base(struct engram_segment_writer *w);
/* Bytes of the pages that its backing is made of, before any are joined. */
uint64_t engram_segment_writer_page(const struct engram_segment_writer *w);

/*
 * All rows and checksums are in place: compute content id and header
 * checksum, set READY, store magic and abi_version with release order, and
 * link the final name (nothing to link for memfd).  From here on the writer
 * is a mapping like any other; it is turned read-only.  On error the segment
 * is still private and engram_segment_discard is due.
 */
enum engram_status engram_segment_publish(struct engram_segment_writer *w,
					  struct engram_error *err);

/*
 * Can a segment of this spec be written into the memory of a published one
 * whose header is `h`?  Sizes, row counts, primes and the places of everything
 * have to be the same, and the memory one that can still be written to.
 * ENGRAM_EGEOMETRY, ENGRAM_EUNSUPPORTED (memfd: it is sealed).
 */
enum engram_status engram_segment_check_overwrite(
	const struct engram_backing *backing,
	const struct engram_segment_header *h,
	const struct engram_segment_spec *spec, struct engram_error *err);

/*
 * Make the mapping of a published segment writable again; its address may
 * change.  Nothing that others see does.
 */
enum engram_status engram_segment_unprotect(struct engram_segment_writer *w,
					    struct engram_error *err);

/*
 * Then make it one of `spec` that is being written, as engram_segment_create
 * returns, in the memory that it has and that others may have mapped: the
 * caller sees to it that nobody reads any more.  From the first step on it can
 * neither be mapped nor adopted, so that a crash leaves nothing that is half
 * of one generation.  On error it is what it was.
 */
enum engram_status engram_segment_overwrite(
	struct engram_segment_writer *w, const struct engram_segment_spec *spec,
	struct engram_error *err);

/* A new O_RDONLY descriptor of the segment, for a client; CLOEXEC. */
enum engram_status engram_segment_reopen(const struct engram_segment_writer *w,
					 int *fd, struct engram_error *err);

/*
 * The same, O_RDWR, for a client whose device can register nothing else.  Who
 * has it can change the segment, and shrink it: a SIGBUS in every process that
 * reads it.  ENGRAM_EUNSUPPORTED for a memfd: publishing seals it.
 */
enum engram_status engram_segment_reopen_writable(
	const struct engram_segment_writer *w, int *fd,
	struct engram_error *err);

/* Unmap, close, and remove every name of it, published or not.  Clients that
 * hold descriptors keep their memory.  NULL is allowed. */
void engram_segment_discard(struct engram_segment_writer *w);
/* The same, but a published name stays, for a later owner of the instance to
 * adopt. */
void engram_segment_leave(struct engram_segment_writer *w);

/* ---- taking over (engramd only) ---- */

/*
 * A published segment that a former owner of the instance has left, as if this
 * process had written it: mapped read-only, its name ours to remove.  The
 * header is checked as by engram_segment_map_fd, the records are not
 * (engram_segment_verify).  ENGRAM_EPERM for a file of another user.
 */
enum engram_status engram_segment_adopt(const struct engram_backing *backing,
					const char *name,
					struct engram_segment_writer **out,
					struct engram_error *err);

/*
 * Is the segment what a spec would be built into now, generation aside: the
 * same names, layout, geometry, hash parameters, token map and sources (size,
 * mtime, header hash, inode)?  ENGRAM_ESOURCECHANGED says what differs.
 */
enum engram_status engram_segment_compare(
	const struct engram_segment_header *h,
	const struct engram_segment_spec *spec, struct engram_error *err);

/* ---- reading ---- */

struct engram_segment_map {
	/* a copy of the header region: what was checked is what is used */
	const struct engram_segment_header *header;
	uint64_t header_bytes;
	/* Rows [row_begin, row_end): pointers to the codes and the scales of
	 * row_begin.  In the packed layout scales = codes + code bytes. */
	const void *codes;
	const void *scales;
	uint64_t row_begin, row_end;
	/* what munmap needs */
	void *data_map[2];
	uint64_t data_map_bytes[2];
};

/*
 * Check the segment behind `fd`, copy its header region and map the rows
 * [row_begin, row_end) read-only, shared, MADV_DONTFORK.  row_end of
 * UINT64_MAX means all; an empty range maps nothing.
 * Does not keep fd.  Errors tell apart ENGRAM_ENOTREADY, ENGRAM_ETOOSHORT,
 * ENGRAM_EVERSION, ENGRAM_EDAMAGED, ENGRAM_EINVAL (range).
 */
enum engram_status engram_segment_map_fd(int fd, uint64_t row_begin,
					 uint64_t row_end,
					 struct engram_segment_map *out,
					 struct engram_error *err);
/* The same with the rows mapped for writing too, until engram_segment_protect;
 * `fd` must be O_RDWR, else ENGRAM_EPERM. */
enum engram_status engram_segment_map_writable(int fd, uint64_t row_begin,
					       uint64_t row_end,
					       struct engram_segment_map *out,
					       struct engram_error *err);
/* Make the rows' pages read-only in this process; again does no harm. */
enum engram_status engram_segment_protect(const struct engram_segment_map *map,
					  struct engram_error *err);
void engram_segment_unmap(struct engram_segment_map *map);

/* Open a published name read-only (no O_CREAT, no link followed):
 * ENGRAM_ENOTFOUND if it is not there. */
enum engram_status engram_segment_open(const struct engram_backing *backing,
				       const char *name, int *fd,
				       struct engram_error *err);

/*
 * Recompute the checksums of rows [row_begin, row_end), both multiples of
 * chunk_rows or the end, from a whole-table mapping and compare with the
 * header's.  On ENGRAM_ECHECKSUM *bad_chunk tells which.  Any thread.
 */
enum engram_status engram_segment_verify(const struct engram_segment_map *map,
					 uint64_t row_begin, uint64_t row_end,
					 uint64_t *bad_chunk,
					 struct engram_error *err);

/* ---- what lies about in a backing ---- */

struct engram_segment_entry {
	char name[256];
	char instance[ENGRAM_NAME_MAX + 1];
	char table[ENGRAM_NAME_MAX + 1];
	int32_t layer_id;
	uint64_t generation;
	uint32_t replica; /* as in struct engram_segment_spec */
	uint64_t bytes;	  /* memory it takes (st_blocks), not its length */
	int temporary;	  /* never published */
	int control;	  /* it is a control page, not a segment */
};

/* List the names that belong to `instance`, or to any with NULL.
 * *entries is malloc'd, the caller frees it. */
enum engram_status engram_segment_list(const struct engram_backing *backing,
				       const char *instance,
				       struct engram_segment_entry **entries,
				       size_t *count, struct engram_error *err);

/* Remove one listed name; a name already gone is success. */
enum engram_status engram_segment_remove(const struct engram_backing *backing,
					 const char *name,
					 struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
