/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

#define PATTERN_BYTES_MAX   255
#define DRAIN_SECONDS_DFLT  60
#define WATCH_SECONDS_DFLT  5
#define SETTLE_SECONDS_DFLT 10
#define SECONDS_MAX	    1000000

static const char *const layout_names[] = {"packed", "split", NULL};
static const enum engram_record_layout layouts[] = {ENGRAM_PACKED,
						    ENGRAM_SPLIT};
static const char *const manifest_names[] = {"auto", "require", "off", NULL};
static const char *const load_names[] = {"start", "on_demand", NULL};

/* How often `mark` is in a pattern. */
static unsigned int count_mark(const char *pattern, const char *mark)
{
	unsigned int n = 0;

	for (; (pattern = strstr(pattern, mark)); pattern++)
		n++;
	return n;
}

static void read_pattern(struct json_view *v, const char *where, json_t *value,
			 char **out)
{
	const char *text = json_string_value(value);

	if (!text)
		config_fault(v, where, "write the name of a tensor",
			     "must be a string");
	else if (count_mark(text, "{layer}") != 1)
		config_fault(v, where,
			     "write it as \"layers.{layer}.engram.embed."
			     "weight\"",
			     "\"%s\" must have \"{layer}\" in it once", text);
	else if (count_mark(text, "{part}") > 1)
		config_fault(v, where, "leave one of them",
			     "\"%s\" has \"{part}\" in it more than once",
			     text);
	else if (strlen(text) > PATTERN_BYTES_MAX)
		config_fault(v, where, "use a shorter one",
			     "is %zu bytes long, at most %d are allowed",
			     strlen(text), PATTERN_BYTES_MAX);
	else if (!(*out = strdup(text)))
		config_no_memory(v);
}

static char **read_patterns(struct json_view *v, const char *key)
{
	json_t *array = json_view_array(v, key, 1, CONFIG_PATTERN_MAX);
	char where[32];
	char **patterns;
	size_t i;

	if (!array)
		return NULL;
	patterns = calloc(json_array_size(array) + 1, sizeof(*patterns));
	if (!patterns) {
		config_no_memory(v);
		return NULL;
	}
	for (i = 0; i < json_array_size(array) && !v->failed; i++) {
		snprintf(where, sizeof(where), "%s[%zu]", key, i);
		read_pattern(v, where, json_array_get(array, i), &patterns[i]);
	}
	return patterns;
}

static void read_tensors(struct json_view *top, struct config_table *table)
{
	struct json_view v;

	if (!config_section_begin(top, &v, "tensors"))
		return;
	table->weight_patterns = read_patterns(&v, "weight");
	table->scale_patterns = read_patterns(&v, "scale");
	config_section_end(top, &v);
}

static bool read_layer(struct json_view *v, const json_t *value, uint32_t at,
		       int32_t *layers)
{
	json_int_t layer = json_integer_value(value);
	char where[32];
	uint32_t i;

	snprintf(where, sizeof(where), "layers[%u]", at);
	if (!json_is_integer(value) || layer < 0 || layer > INT32_MAX) {
		config_fault(v, where,
			     "write layer ids as the model counts them",
			     "must be an integer from 0 to %d", INT32_MAX);
		return false;
	}
	for (i = 0; i < at; i++)
		if (layers[i] == layer)
			config_fault(v, where, "remove one of them",
				     "layer %d is listed twice", (int)layer);
	layers[at] = (int32_t)layer;
	return true;
}

uint32_t config_layers(struct json_view *v, const json_t *array, int32_t *out)
{
	uint32_t n = 0;
	size_t i;

	for (i = 0; i < json_array_size(array) && !v->failed; i++)
		n += read_layer(v, json_array_get(array, i), n, out);
	return n;
}

static void read_layers(struct json_view *v, struct config_table *table)
{
	json_t *array = json_view_array(v, "layers", 1, ENGRAM_LAYERS_MAX);

	if (!array)
		return;
	table->layers = calloc(json_array_size(array), sizeof(*table->layers));
	if (!table->layers) {
		config_no_memory(v);
		return;
	}
	table->num_layers = config_layers(v, array, table->layers);
}

static void read_reload(struct json_view *top, struct config_reload *out)
{
	static const char *const names[] = {"beside", "drain_first", "in_place",
					    NULL};
	struct json_view v;

	*out = (struct config_reload){.drain_seconds = DRAIN_SECONDS_DFLT,
				      .settle_seconds = SETTLE_SECONDS_DFLT};
	if (!config_section_begin(top, &v, "reload"))
		return;
	out->mode = (enum reload_mode)json_view_enum(&v, "mode", names, 0);
	out->drain_seconds = (uint32_t)json_view_int(
		&v, "drain_seconds", 1, SECONDS_MAX, DRAIN_SECONDS_DFLT);
	out->retain_seconds = (uint32_t)json_view_int(&v, "retain_seconds", 0,
						      SECONDS_MAX, 0);
	out->settle_seconds = (uint32_t)json_view_int(
		&v, "settle_seconds", 0, SECONDS_MAX, SETTLE_SECONDS_DFLT);
	if (out->mode == RELOAD_IN_PLACE &&
	    out->settle_seconds >= out->drain_seconds)
		config_fault(&v, "settle_seconds",
			     "make it less than drain_seconds",
			     "%u s, and after drain_seconds, %u, the reload "
			     "ends",
			     out->settle_seconds, out->drain_seconds);
	config_section_end(top, &v);
}

static void read_watch(struct json_view *top, uint32_t *seconds)
{
	struct json_view v;

	if (!config_section_begin(top, &v, "watch"))
		return;
	*seconds = (uint32_t)json_view_int(&v, "debounce_seconds", 1,
					   SECONDS_MAX, WATCH_SECONDS_DFLT);
	config_section_end(top, &v);
}

/* What must not stand beside each other. */
static void check_token_map(struct json_view *v, const struct config_table *t)
{
	if (t->token_map && t->format.raw_ids)
		config_fault(v, "token_map",
			     "remove it, or set hash.ids to \"compressed\"",
			     "stands beside raw ids, which need none");
}

enum engram_status config_parse_table(json_t *value, const char *path,
				      const struct json_source *src,
				      enum engram_status status,
				      struct config_table *out,
				      struct engram_error *err)
{
	struct json_view v;

	memset(out, 0, sizeof(*out));
	json_view_begin(&v, value, path, src, status, err);
	json_view_require(&v, "name", "what clients call the table");
	out->name = config_table_name(&v, "name");
	json_view_require(&v, "checkpoint",
			  "the directory that the model was downloaded to");
	out->checkpoint = config_path(&v, "checkpoint", NULL);
	out->layout = layouts[json_view_enum(&v, "layout", layout_names, 0)];
	out->load_at_start = json_view_enum(&v, "load", load_names, 0) == 0;
	out->verify = json_view_bool(&v, "verify", true);
	out->manifest = (enum manifest_mode)json_view_enum(
		&v, "manifest", manifest_names, MANIFEST_AUTO);
	read_layers(&v, out);
	read_tensors(&v, out);
	out->token_map = config_string(&v, "token_map", NULL);
	config_read_rows(&v, &out->format);
	config_read_hash(&v, &out->format);
	check_token_map(&v, out);
	read_reload(&v, &out->reload);
	read_watch(&v, &out->watch_seconds);
	status = json_view_end(&v);
	if (status)
		config_table_free(out);
	return status;
}

static void free_strings(char **strings)
{
	size_t i;

	for (i = 0; strings && strings[i]; i++)
		free(strings[i]);
	free(strings);
}

void config_table_free(struct config_table *table)
{
	free(table->name);
	free(table->checkpoint);
	free(table->layers);
	free_strings(table->weight_patterns);
	free_strings(table->scale_patterns);
	free(table->token_map);
	table_format_free(&table->format);
	memset(table, 0, sizeof(*table));
}

static void check_duplicate(struct json_view *top, const char *where,
			    const struct config *config, size_t at)
{
	char key[48];
	size_t i;

	for (i = 0; i < at; i++) {
		if (strcmp(config->tables[i].name, config->tables[at].name) !=
		    0)
			continue;
		snprintf(key, sizeof(key), "%s.name", where);
		config_fault(top, key, "give each table a name of its own",
			     "\"%s\" is the name of tables[%zu] too",
			     config->tables[at].name, i);
		return;
	}
}

void config_read_tables(struct json_view *top, struct config *config)
{
	json_t *array = json_view_array(top, "tables", 0, CONFIG_TABLES_MAX);
	enum engram_status status;
	char where[32];
	size_t i;

	if (!array)
		return;
	config->tables =
		calloc(json_array_size(array) + 1, sizeof(*config->tables));
	if (!config->tables) {
		config_no_memory(top);
		return;
	}
	for (i = 0; i < json_array_size(array) && !top->failed; i++) {
		snprintf(where, sizeof(where), "tables[%zu]", i);
		status = config_parse_table(json_array_get(array, i), where,
					    top->src, top->status,
					    &config->tables[i], top->err);
		if (status) {
			top->failed = true;
			top->status = status;
			return;
		}
		config->num_tables++;
		check_duplicate(top, where, config, i);
	}
}
