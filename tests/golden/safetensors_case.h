/* SPDX-License-Identifier: Apache-2.0 */
/* A golden file: a safetensors file whose metadata says what to compute.
 * For trusted test data only. */
#ifndef ENGRAM_SAFETENSORS_CASE_H
#define ENGRAM_SAFETENSORS_CASE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct golden_case {
	char *bytes; /* the whole file, 8-byte aligned data */
	char *data;
	size_t data_size;
	json_t *header;
	const char *path;
};

/* Exits with a message when the file cannot be read: a golden file that is
 * not there is a fault of the tree, not of the code under test. */
void golden_open(struct golden_case *c, const char *path);
void golden_close(struct golden_case *c);

/* A metadata value; exits when it is missing. */
const char *golden_text(const struct golden_case *c, const char *key);
int64_t golden_int(const struct golden_case *c, const char *key);
double golden_real(const struct golden_case *c, const char *key);
/* "[1, 14]" -> values; returns how many, at most `max` */
size_t golden_list(const struct golden_case *c, const char *key,
		   int64_t *values, size_t max);

/* A tensor's aligned data, of `dtype` ("I32", …) with `ndim` dimensions, which
 * go to shape; NULL when there is none.  Any other dtype or rank exits. */
void *golden_tensor(const struct golden_case *c, const char *name,
		    const char *dtype, int ndim, int64_t *shape);
/* The same, but exits when there is none. */
void *golden_need(const struct golden_case *c, const char *name,
		  const char *dtype, int ndim, int64_t *shape);

_Noreturn void golden_die(const char *path, const char *what, const char *name);

#endif
