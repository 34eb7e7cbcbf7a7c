/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON strictly, on top of jansson: configuration files, request
 * parameters, config.json of a model.
 *
 * A json_view is one object being read.  Ask for every member that is
 * allowed, then call json_view_end: it refuses members nobody asked for, and
 * suggests the nearest name.  The first fault sticks: later getters return
 * their default at once, so that callers check once, at the end.
 *
 * Errors have the JSON path in err->path ("tables[0].layout"), and, for text
 * read from a file, "FILE:LINE: " before the message.
 */
#ifndef ENGRAMD_JSON_H
#define ENGRAMD_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"

/* Parsed text that remembers where it came from. */
struct json_source {
	char *name; /* file name, or NULL for a message */
	char *text;
	size_t len;
	json_t *root;
};

/*
 * Parse strictly: UTF-8, no duplicate keys, ENGRAM_DEPTH_MAX nested levels, no
 * trailing bytes.  `status` is what errors are reported as (ENGRAM_ECONFIG,
 * ENGRAM_ECHECKPOINT, ENGRAM_EPROTOCOL).  `max_bytes` bounds a file.
 */
enum engram_status json_source_parse(struct json_source *src, const char *name,
				     const char *text, size_t len,
				     enum engram_status status,
				     struct engram_error *err);
enum engram_status json_source_read(struct json_source *src, const char *file,
				    size_t max_bytes, enum engram_status status,
				    struct engram_error *err);
/* The same with all numbers as reals, for files that have integers of any
 * size. */
enum engram_status json_source_read_reals(struct json_source *src,
					  const char *file, size_t max_bytes,
					  enum engram_status status,
					  struct engram_error *err);
void json_source_free(struct json_source *src);

/* The line (from 1) on which the value at `path` starts; 0 if unknown. */
unsigned int json_source_line(const struct json_source *src, const char *path);

#define JSON_VIEW_KEYS 64

struct json_view {
	json_t *object;
	const struct json_source *src; /* for lines; may be NULL */
	char path[192];		       /* of the object; "" at the top */
	enum engram_status status;     /* that faults are reported as */
	struct engram_error *err;
	bool failed;
	const char *asked[JSON_VIEW_KEYS];
	unsigned int num_asked;
};

/* `value` must be an object; if it is not, the view has failed. */
void json_view_begin(struct json_view *v, json_t *value, const char *path,
		     const struct json_source *src, enum engram_status status,
		     struct engram_error *err);
/* Unknown members are a fault; returns ENGRAM_OK or the sticky status. */
enum engram_status json_view_end(struct json_view *v);
/* The same without looking for unknown members. */
enum engram_status json_view_result(const struct json_view *v);

bool json_view_has(struct json_view *v, const char *key);
/* Getters with a default when the key is absent (JSON null is not absent,
 * it is a wrong type). */
const char *json_view_string(struct json_view *v, const char *key,
			     const char *dflt);
int64_t json_view_int(struct json_view *v, const char *key, int64_t min,
		      int64_t max, int64_t dflt);
double json_view_real(struct json_view *v, const char *key, double min,
		      double max, double dflt);
bool json_view_bool(struct json_view *v, const char *key, bool dflt);
/* Index into the NULL-terminated `names`. */
int json_view_enum(struct json_view *v, const char *key,
		   const char *const *names, int dflt);
/* "4MiB", "1GiB", "65536" or a number: bytes. */
uint64_t json_view_bytes(struct json_view *v, const char *key, uint64_t min,
			 uint64_t max, uint64_t dflt);
/* Borrowed; NULL when absent or on a fault. */
json_t *json_view_array(struct json_view *v, const char *key, size_t min_items,
			size_t max_items);
json_t *json_view_object(struct json_view *v, const char *key);
json_t *json_view_any(struct json_view *v, const char *key);
/* Report a fault of one's own at a member. */
void json_view_fail(struct json_view *v, const char *key, const char *fmt, ...)
	ENGRAM_PRINTF(3, 4);
/* Make an absent member a fault: "KEY is missing: WHAT". */
void json_view_require(struct json_view *v, const char *key, const char *what);

/* The nearest of the NULL-terminated words within a small edit distance, or
 * NULL. */
const char *json_nearest(const char *word, const char *const *words);

#endif
