/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a table is to be loaded from.  Counted, since a load goes on with the
 * one it started with when the configuration changes.  References are taken
 * and dropped in the loop; the contents never change.
 */
#ifndef ENGRAMD_SPEC_H
#define ENGRAMD_SPEC_H

#include "checkpoint.h"
#include "config.h"

struct table_spec {
	unsigned int refs;
	struct config_table config;
	json_t *json; /* as given, to tell whether it changed */
};

/* Moves the contents of `from`, which is left empty; NULL without memory. */
struct table_spec *table_spec_take(struct config_table *from, json_t *json);
struct table_spec *table_spec_get(struct table_spec *spec);
void table_spec_put(struct table_spec *spec); /* NULL is allowed */

/* Would another generation come of it? */
bool table_spec_differs(const struct table_spec *a, const struct table_spec *b);

/* How to open the checkpoint of a table, which has to outlive them. */
struct checkpoint_options table_checkpoint_options(
	const struct config_table *table);

/* Does its checkpoint have to have a config.json? */
bool table_needs_config(const struct config_table *table);

#endif
