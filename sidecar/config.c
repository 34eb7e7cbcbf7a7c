/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "config_parts.h"

#define CONFIG_BYTES_MAX (1u << 20)

static void read_all(struct json_view *v, struct config *config)
{
	config->instance = config_instance(v, "instance", "default");
	config_read_socket(v, config);
	config_read_access(v, config);
	config_read_log(v, config);
	config_read_memory(v, config);
	config_read_loader(v, config);
	config_read_gather(v, config);
	config_read_metrics(v, config);
	config_read_limits(v, config);
	config_read_tables(v, config);
}

/* Takes over nothing of `src`. */
static enum engram_status from_source(const struct json_source *src,
				      struct config **out,
				      struct engram_error *err)
{
	struct config *config = calloc(1, sizeof(*config));
	enum engram_status status;
	struct json_view v;

	if (!config)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	json_view_begin(&v, src->root, "", src, ENGRAM_ECONFIG, err);
	read_all(&v, config);
	status = json_view_end(&v);
	if (status) {
		config_free(config);
		return status;
	}
	config->json = json_incref(src->root);
	*out = config;
	return ENGRAM_OK;
}

enum engram_status config_parse(const char *name, const char *text, size_t len,
				struct config **out, struct engram_error *err)
{
	struct json_source src = {0};
	enum engram_status status;

	*out = NULL;
	status = json_source_parse(&src, name, text, len, ENGRAM_ECONFIG, err);
	if (status)
		return status;
	status = from_source(&src, out, err);
	json_source_free(&src);
	return status;
}

enum engram_status config_read(const char *file, struct config **out,
			       struct engram_error *err)
{
	struct json_source src = {0};
	enum engram_status status;

	*out = NULL;
	status = json_source_read(&src, file, CONFIG_BYTES_MAX, ENGRAM_ECONFIG,
				  err);
	if (status)
		return status;
	status = from_source(&src, out, err);
	json_source_free(&src);
	return status;
}

static void free_access(struct config_access *access)
{
	free(access->uids);
	free(access->gids);
}

void config_free(struct config *config)
{
	size_t i;

	if (!config)
		return;
	for (i = 0; i < config->num_tables; i++)
		config_table_free(&config->tables[i]);
	free(config->tables);
	free_access(&config->read);
	free_access(&config->change);
	free(config->instance);
	free(config->socket);
	free(config->socket_group);
	free(config->gather.cores);
	free(config->metrics.listen);
	free(config->metrics.path);
	json_decref(config->json);
	free(config);
}
