/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "spec.h"

struct table_spec *table_spec_take(struct config_table *from, json_t *json)
{
	struct table_spec *spec = malloc(sizeof(*spec));

	if (!spec)
		return NULL;
	spec->refs = 1;
	spec->config = *from;
	spec->json = json_incref(json);
	memset(from, 0, sizeof(*from));
	return spec;
}

struct table_spec *table_spec_get(struct table_spec *spec)
{
	spec->refs++;
	return spec;
}

void table_spec_put(struct table_spec *spec)
{
	if (!spec || --spec->refs)
		return;
	config_table_free(&spec->config);
	json_decref(spec->json);
	free(spec);
}

/* Members that take effect at once: they say what is done with the table. */
static bool is_conduct(const char *key)
{
	static const char *const keys[] = {"load", "reload", "watch"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (strcmp(key, keys[i]) == 0)
			return true;
	return false;
}

/* Does `b` lack one of the members of `a`, or have it otherwise? */
static bool lacks(json_t *b, json_t *a)
{
	const char *key;
	json_t *value;

	json_object_foreach(a, key, value)
	{
		if (!is_conduct(key) &&
		    !json_equal(value, json_object_get(b, key)))
			return true;
	}
	return false;
}

bool table_spec_differs(const struct table_spec *a, const struct table_spec *b)
{
	return lacks(a->json, b->json) || lacks(b->json, a->json);
}

struct checkpoint_options table_checkpoint_options(
	const struct config_table *table)
{
	return (struct checkpoint_options){
		.dir = table->checkpoint,
		.weight_patterns = (const char *const *)table->weight_patterns,
		.scale_patterns = (const char *const *)table->scale_patterns,
		.layers = table->num_layers ? table->layers : NULL,
		.num_layers = table->num_layers,
		.token_map_file = table->token_map,
		.format = &table->format,
	};
}

bool table_needs_config(const struct config_table *table)
{
	return !table->format.num_layers;
}
