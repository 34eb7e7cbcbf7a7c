/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint is known to hold: "engram_manifest.json" beside it, with
 * the size and header hash of every file that tables are made of, and the
 * checksum of every 64 MiB of records.  A load compares what it reads with it,
 * at no cost: it takes the same checksums anyway.
 */
#ifndef ENGRAMD_MANIFEST_H
#define ENGRAMD_MANIFEST_H

#include "checkpoint.h"
#include "engram_error.h"
#include "engram_segment.h"
#include "loader.h"

#define MANIFEST_NAME "engram_manifest.json"

/* Whether a table is compared with it: if there is one, always, never. */
enum manifest_mode { MANIFEST_AUTO = 0, MANIFEST_REQUIRE, MANIFEST_OFF };

struct manifest_file {
	char *name; /* relative to the directory */
	uint64_t size;
	uint64_t header_hash; /* as in struct engram_segment_source */
};

struct manifest_layer {
	int32_t layer_id;
	uint64_t rows, record_bytes, chunk_rows;
	uint64_t *checksums; /* as in a segment's header */
	uint64_t num_chunks;
};

struct manifest {
	struct manifest_file *files;
	size_t num_files;
	struct manifest_layer *layers;
	size_t num_layers;
};

/* ENGRAM_ENOTFOUND if there is none, ENGRAM_ECHECKPOINT if it is none. */
enum engram_status manifest_read(const char *dir, struct manifest *out,
				 struct engram_error *err);
void manifest_free(struct manifest *manifest);

/* Are the checkpoint's files those of the manifest, by size and header?
 * ENGRAM_ESOURCECHANGED names the first that is not. */
enum engram_status manifest_check_files(const struct manifest *manifest,
					const struct checkpoint *checkpoint,
					struct engram_error *err);

/* The checksums that a segment of this header must have: ENGRAM_ESOURCECHANGED
 * if the manifest is for other layers or other rows. */
enum engram_status manifest_find(const struct manifest *manifest,
				 const struct engram_segment_header *h,
				 const uint64_t **checksums,
				 struct engram_error *err);
/* Does the segment have them?  ENGRAM_ESOURCECHANGED names the first rows that
 * differ. */
enum engram_status manifest_compare(const struct manifest *manifest,
				    const struct engram_segment_header *h,
				    struct engram_error *err);

/* By reading all of it.  With `known`, chunks that differ are an error. */
enum engram_status manifest_make(const struct checkpoint *checkpoint,
				 const struct loader_options *options,
				 const struct manifest *known,
				 struct loader_progress *progress,
				 struct manifest *out,
				 struct engram_error *err);
/* The file appears whole, or stays as it was. */
enum engram_status manifest_write(const struct manifest *manifest,
				  const char *dir, struct engram_error *err);

/* ---- engramd --manifest ---- */

struct config_table;

struct manifest_command {
	const char *dir;		  /* NULL: the table's */
	const struct config_table *table; /* NULL: as config.json says */
	const char *token_map; /* file, relative to dir; or NULL: the table's */
	bool check;	       /* compare, and write nothing */
};

/* Progress goes to stderr if that is a terminal.  EXIT_SUCCESS or
 * EXIT_FAILURE. */
int manifest_run(const struct manifest_command *command,
		 const struct loader_options *options);

#endif
