/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One function for each kind of golden file: runs the case with the
 * instruction set in use and returns 0 when the results agree; else `why`
 * says where they first differ.
 */
#ifndef ENGRAM_GOLDEN_H
#define ENGRAM_GOLDEN_H

#include "safetensors_case.h"

#define GOLDEN_WHY 1024

int golden_hash(const struct golden_case *c, char *why);
int golden_lookup(const struct golden_case *c, char *why);
int golden_gate(const struct golden_case *c, char *why);
int golden_sp_rows(const struct golden_case *c, char *why);

/* A layout file holds one layout or a list of them. */
int golden_layouts(const char *path, char *why);

#endif
