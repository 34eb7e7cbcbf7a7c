/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of libengram_cuda begin with: a table, a sidecar that has it,
 * a connection. */
#ifndef TEST_CUDA_SETTING_H
#define TEST_CUDA_SETTING_H

#include "engram_cuda.h"
#include "fake.h"

struct setting {
	struct fake_table table;
	struct fake fake;
	engram_client *client;
};

/* For cmocka.  *state is the struct fake_twist of the table, or NULL, and then
 * the setting; no lease must be held at the end. */
int setting_make(void **state);
int setting_free(void **state);

/* A rank's handle when it is ready. */
engram_cuda_table *setting_attach(struct setting *s, uint32_t rank,
				  uint32_t size,
				  const struct engram_cuda_attach_params *cuda);

/* Hash and rows of all layers are those of the CPU; nothing is missed but an
 * id that is nobody's. */
void check_use(engram_cuda_table *t);
/* The same for a table without a token map: rows alone. */
void check_rows(engram_cuda_table *t);

/* The permissions of the mapping that an address is in, as "r--s". */
void permissions(const void *address, char out[8]);

#endif
