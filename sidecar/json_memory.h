/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jansson does not survive every allocation that fails while it parses: a
 * string comes out with bytes missing and nobody is told, or an assertion
 * fails.  So it allocates through here: what malloc refuses comes from a
 * small reserve, and is remembered, and a parse that needed the reserve is
 * no parse.  The reserve is also what an answer that says so is made of.
 */
#ifndef ENGRAMD_JSON_MEMORY_H
#define ENGRAMD_JSON_MEMORY_H

#include <stdbool.h>

/* From here on in this thread; the first call of all makes jansson allocate
 * through here. */
void json_memory_begin(void);
/* Has malloc refused jansson anything in this thread since? */
bool json_memory_failed(void);

#endif
