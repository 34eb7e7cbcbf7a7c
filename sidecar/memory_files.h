/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's files of one number, or of "KEY NUMBER" lines. */
#ifndef ENGRAMD_MEMORY_FILES_H
#define ENGRAMD_MEMORY_FILES_H

#include <stdbool.h>

#include "memory.h"

/* The number after `key`, the start of a line; false if there is none. */
bool memory_read_key(const char *file, const char *key, unsigned int base,
		     uint64_t *value);

#endif
