/* SPDX-License-Identifier: Apache-2.0 */
/* Token maps in files: JSON as beside a checkpoint, and NumPy's .npy. */
#ifndef ENGRAMCTL_TOKMAP_FILE_H
#define ENGRAMCTL_TOKMAP_FILE_H

#include <stdint.h>

#include "engram_error.h"

/*
 * Read {"token_map": [...]}, the bare array, or a .npy of one dimension of
 * little-endian int32 or int64, told apart by what is in it.  *out is
 * malloc'd, int64 [*len].  ENGRAM_ENOTFOUND, ENGRAM_ESYS, ENGRAM_EINVAL (what
 * is wrong with the file), ENGRAM_ENOMEM.
 */
enum engram_status tokmap_read(const char *file, int64_t **out, uint64_t *len,
			       struct engram_error *err);

/* Does the name end in .json or .npy, so that tokmap_write can write it? */
int tokmap_writable_name(const char *file);

/*
 * Write a map of `len` entries as the name's ending says: {"token_map": [...]},
 * which engramd reads, or .npy, int32.  Nothing is at `file`, or what was
 * there before, until all of it is written.
 */
enum engram_status tokmap_write(const char *file, const int32_t *map,
				uint64_t len, struct engram_error *err);

#endif
