/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint directory as downloaded: config.json, one or many safetensors
 * files, an optional token map; read, checked against each other and against
 * the derived geometry.  Reads headers only, never tensor data.
 */
#ifndef ENGRAMD_CHECKPOINT_H
#define ENGRAMD_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_geometry.h"
#include "engram_segment.h"
#include "table_format.h"

struct checkpoint_faults;

struct checkpoint_options {
	const char *dir;
	/* Tensor names; "{layer}" stands for the layer id, "{part}" for 0, 1,
	 * 2 and so on.  Several patterns are tried in order; NULL: the
	 * defaults of config(5). */
	const char *const *weight_patterns; /* NULL-terminated */
	const char *const *scale_patterns;
	/* Layer ids to load, a subset of the model's; NULL: all. */
	const int32_t *layers;
	uint32_t num_layers;
	/* File of the token map (token_map.h), in dir or a path from the root
	 * on; NULL: "engram_token_map.json", else "tokenizer.json", else none.
	 */
	const char *token_map_file;
	const struct table_format *format; /* NULL: TABLE_FORMAT_DEFAULT */
	/* NULL: stop at the first fault.  Else note it there and go on where
	 * what follows does not depend on it (checkpoint_faults.h). */
	struct checkpoint_faults *faults;
};

/* Rows that lie one after the other in a file. */
struct checkpoint_part {
	uint32_t file;
	uint64_t offset; /* of the first */
	uint64_t rows;
};

struct checkpoint_tensor {
	uint32_t file;	 /* index into files */
	uint64_t offset; /* of its first byte in the file; any alignment */
	uint64_t bytes;
	uint32_t dtype; /* enum engram_dtype for codes; scales are bytes */
	uint64_t shape[2];
	/* Of a tensor that is stored as several, of which file and offset are
	 * the first one's; NULL: it is one. */
	struct checkpoint_part *parts;
	uint32_t num_parts;
};

struct checkpoint_file {
	char *path; /* to open */
	char *name; /* in the directory, or from the root on */
	struct engram_segment_source identity;
};

struct checkpoint_layer {
	int32_t layer_id;
	uint32_t geometry_index; /* into geometry's arrays */
	uint64_t rows;
	struct checkpoint_tensor weight;
	struct checkpoint_tensor scale; /* bytes 0: there is none */
	float tensor_scale;		/* 1 for the other schemes */
	uint32_t *files; /* indices of the sources this layer's bytes and
			  * geometry come from */
	uint32_t num_files;
};

struct checkpoint {
	char *dir;			  /* resolved, if absolute */
	struct checkpoint_faults *faults; /* of the options */
	struct checkpoint_file *files;
	uint32_t num_files;
	struct checkpoint_layer *layers; /* those to load */
	uint32_t num_layers;
	struct engram_geometry *geometry; /* of all layers of the model */
	uint32_t dim;
	uint32_t block_size;
	uint32_t dtype;
	uint32_t scale_scheme;
	uint32_t row_multiple; /* of the tensors' rows; what is added is not
				* loaded */
	uint32_t compressed_vocab_size;
	uint32_t prime_seed; /* engram_vocab_size */
	uint32_t raw_pad_id;
	int32_t pad_id;	   /* compressed; -1 without a token map */
	uint32_t num_cuts; /* 0 without a token map */
	int32_t cut_ids[ENGRAM_SEGMENT_CUTS]; /* compressed */
	int32_t *token_map;		      /* [token_map_len] or NULL */
	uint64_t token_map_len;
	/* for the gate and for users; 0 when config.json lacks them */
	uint32_t hidden_size;
	uint32_t hc_mult;
	double rms_norm_eps;
	uint32_t vocab_size;
};

/*
 * ENGRAM_ENOTFOUND, ENGRAM_ECHECKPOINT (what is missing, misshapen, damaged),
 * ENGRAM_EGEOMETRY (both numbers), ENGRAM_ENOMEM, ENGRAM_ESYS.  err->path is
 * the file; the message names the tensor or key.  With options->faults these
 * are noted, ENGRAM_OK is returned, and *out is what could be read: without
 * geometry or layers if it did not get there, and with tensors of 0 bytes
 * where they are missing or wrong.  Do not load that if there are faults.
 */
enum engram_status checkpoint_open(const struct checkpoint_options *options,
				   struct checkpoint **out,
				   struct engram_error *err);
void checkpoint_free(struct checkpoint *checkpoint);

/*
 * Has any source of the layer changed since checkpoint_open (size, mtime,
 * inode)?  ENGRAM_ESOURCECHANGED names it.
 */
enum engram_status checkpoint_unchanged(const struct checkpoint *checkpoint,
					const struct checkpoint_layer *layer,
					struct engram_error *err);

/*
 * Everything of a segment's spec that comes from the checkpoint; names and
 * generation are the caller's.  Pointers are into `checkpoint` and into
 * *sources, which is malloc'd and the caller's to free.
 */
enum engram_status checkpoint_spec(const struct checkpoint *checkpoint,
				   const struct checkpoint_layer *layer,
				   enum engram_record_layout record_layout,
				   struct engram_segment_spec *spec,
				   struct engram_segment_source **sources,
				   struct engram_error *err);

#endif
