/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_JSON_WRITE_H
#define ENGRAMD_JSON_WRITE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Indented, with a newline.  False, and nothing is written, without memory, or
 * if `out` does not take it all. */
bool json_write(const json_t *value, FILE *out);

#endif
