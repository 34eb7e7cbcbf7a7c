/* SPDX-License-Identifier: Apache-2.0 */
/* `engramd --inspect`: what a checkpoint directory holds, without loading. */
#ifndef ENGRAMD_INSPECT_H
#define ENGRAMD_INSPECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "checkpoint.h"
#include "checkpoint_faults.h"

struct config_table;

struct inspect_options {
	const char *dir;		  /* NULL: the table's */
	const struct config_table *table; /* NULL: as config.json says */
	const char *token_map; /* see checkpoint.h; NULL: the table's */
	uint32_t tp_size;      /* 0: no table of ranks */
	bool json;
};

/* Print what is there on stdout, as text or as the JSON of engramd(8).
 * EXIT_SUCCESS if it can be loaded, else EXIT_FAILURE. */
int inspect_run(const struct inspect_options *options);

/* ---- the parts ---- */

/* An object being made: a member that could not be made is remembered, so
 * that callers look once, at the end. */
struct inspect_object {
	json_t *json;
	bool failed;
};

void inspect_begin(struct inspect_object *o);
/* `value` is stolen; NULL is a failure. */
void inspect_put(struct inspect_object *o, const char *key, json_t *value);
void inspect_put_u64(struct inspect_object *o, const char *key, uint64_t value);
/* UINT64_MAX, "no limit" or "not known", is null. */
void inspect_put_room(struct inspect_object *o, const char *key,
		      uint64_t value);
/* message, fix, path, needed, available, as far as there are any. */
void inspect_put_error(struct inspect_object *o,
		       const struct engram_error *err);
/* The object, or NULL if anything failed. */
json_t *inspect_end(struct inspect_object *o);

/* inspect_memory.c: what the layers take, where they fit, and the shares of
 * the ranks; a size that has no such ranks is a fault. */
json_t *inspect_memory(const struct checkpoint *c,
		       enum engram_record_layout layout,
		       struct engram_error *err);
json_t *inspect_room(void);
json_t *inspect_ranks(const struct checkpoint *c, uint32_t tp_size,
		      struct checkpoint_faults *faults);

/* inspect_text.c: the same JSON for people. */
void inspect_text(const json_t *all);

#endif
