/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "log.h"
#include "reload.h"

static bool differ(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") != 0;
}

static bool gathers_differ(const struct gather_options *a,
			   const struct gather_options *b)
{
	return a->off != b->off || a->threads != b->threads ||
	       a->num_cores != b->num_cores || a->spin_us != b->spin_us ||
	       a->idle_ms != b->idle_ms || a->unit_rows != b->unit_rows ||
	       a->ring_bytes != b->ring_bytes ||
	       (a->num_cores &&
		memcmp(a->cores, b->cores, a->num_cores * sizeof(*a->cores)));
}

/* The first key that a running sidecar can not change, or NULL. */
static const char *fixed_key(const struct config *a, const struct config *b)
{
	if (differ(a->instance, b->instance))
		return "instance";
	if (differ(a->socket, b->socket))
		return "socket.path";
	if (a->socket_mode != b->socket_mode)
		return "socket.mode";
	if (differ(a->socket_group, b->socket_group))
		return "socket.group";
	if (a->backing.kind != b->backing.kind ||
	    differ(a->backing.dir, b->backing.dir))
		return "memory.backing";
	if (a->backing.huge != b->backing.huge ||
	    a->backing.memfd_page != b->backing.memfd_page)
		return "memory.huge_pages";
	if (a->backing.numa != b->backing.numa ||
	    a->backing.nodes != b->backing.nodes)
		return "memory.numa";
	if (differ(a->metrics.listen, b->metrics.listen) ||
	    differ(a->metrics.path, b->metrics.path))
		return "metrics";
	if (gathers_differ(&a->gather, &b->gather))
		return "gather";
	return NULL;
}

enum engram_status reload_config(struct server *server,
				 struct engram_error *err)
{
	struct config *config;
	enum engram_status status;
	const char *key;

	engram_error_clear(err);
	if (server->stopping)
		return engram_error_set(err, ENGRAM_EDRAINING,
					"the sidecar is stopping");
	status = config_read(server->config_file, &config, err);
	if (status)
		return status;
	key = fixed_key(server->config, config);
	if (key) {
		engram_error_set(err, ENGRAM_ECONFIG,
				 "%s: \"%s\" differs, and a running sidecar "
				 "can not change it",
				 server->config_file, key);
		engram_error_fix(err, "restart engramd, or put the old value "
				      "back");
		engram_error_path(err, "%s", key);
		config_free(config);
		return ENGRAM_ECONFIG;
	}
	status = tables_configure(&server->tables, config, err);
	if (status) {
		config_free(config);
		return status;
	}
	server->tables.lock = config->lock;
	server->tables.adopt = config->adopt;
	server->tables.loader = config->loader;
	log_set_level(config->log_level);
	log_set_format(config->log_format);
	config_free(server->config);
	server->config = config;
	return ENGRAM_OK;
}
