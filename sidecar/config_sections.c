/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of the configuration that are a handful of values each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "config_parts.h"
#include "http.h"

#define SUN_PATH_MAX (sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1)

#define THREADS_MAX	 256
#define QUEUE_DEPTH_MAX	 256
#define BLOCK_BYTES_MIN	 (UINT64_C(64) << 10)
#define BLOCK_BYTES_MAX	 (UINT64_C(64) << 20)
#define BLOCK_BYTES_UNIT 4096 /* of O_DIRECT, whatever the device */
#define RATE_MIN	 (UINT64_C(1) << 20)
#define RATE_MAX	 (UINT64_C(1) << 40)
#define CONNECTIONS_MAX	 65536
#define CONNECTIONS_DFLT 512

static const char *const level_names[] = {"error", "warn", "info", "debug",
					  NULL};
static const char *const format_names[] = {"logfmt", "json", NULL};
static const char *const engine_names[] = {"auto", "io_uring", "preadv", NULL};
static const char *const priority_names[] = {"normal", "low", "idle", NULL};
static const char *const direct_names[] = {"auto", "on", "off", NULL};

/* Read and write bits for owner, group and others, in octal. */
static mode_t read_mode(struct json_view *v, const char *key, mode_t dflt)
{
	const char *text = json_view_string(v, key, NULL);
	unsigned long mode;
	char *end;

	if (v->failed || !text)
		return dflt;
	mode = strtoul(text, &end, 8);
	if (text[0] >= '0' && text[0] <= '7' && *end == '\0' &&
	    (mode & ~0666ul) == 0 && (mode & 0600) == 0600)
		return (mode_t)mode;
	config_fault(v, key,
		     "write it in octal, as \"0660\"; the owner must be able "
		     "to read and write, and nobody needs to execute",
		     "\"%s\" is not a mode of a socket", text);
	return dflt;
}

static char *default_socket(struct json_view *v, const char *instance)
{
	char *path;

	if (asprintf(&path, "/run/engramd/%s.sock", instance) < 0) {
		config_no_memory(v);
		return NULL;
	}
	return path;
}

static void check_socket(struct json_view *v, const char *path)
{
	if (path && strlen(path) > SUN_PATH_MAX)
		config_fault(v, "path", "use a shorter path or instance name",
			     "\"%s\" is %zu bytes long, a socket's path has "
			     "at most %zu",
			     path, strlen(path), SUN_PATH_MAX);
}

void config_read_socket(struct json_view *top, struct config *config)
{
	struct json_view v;

	config->socket_mode = 0660;
	if (config_section_begin(top, &v, "socket")) {
		config->socket = config_path(&v, "path", NULL);
		check_socket(&v, config->socket);
		config->socket_mode = read_mode(&v, "mode", 0660);
		config->socket_group = config_string(&v, "group", NULL);
		config_section_end(top, &v);
	}
	if (!config->socket && !top->failed)
		config->socket = default_socket(top, config->instance);
}

void config_read_log(struct json_view *top, struct config *config)
{
	struct json_view v;

	config->log_level = LOG_INFO;
	config->log_format = LOG_LOGFMT;
	if (!config_section_begin(top, &v, "log"))
		return;
	config->log_level = (enum log_level)json_view_enum(
		&v, "level", level_names, LOG_INFO);
	config->log_format = (enum log_format)json_view_enum(
		&v, "format", format_names, LOG_LOGFMT);
	config_section_end(top, &v);
}

static uint32_t read_block_bytes(struct json_view *v)
{
	uint64_t bytes = json_view_bytes(v, "block_bytes", BLOCK_BYTES_MIN,
					 BLOCK_BYTES_MAX, 0);

	if (bytes % BLOCK_BYTES_UNIT)
		config_fault(v, "block_bytes",
			     "direct reads are in units of 4096 bytes",
			     "%llu is not a multiple of %d",
			     (unsigned long long)bytes, BLOCK_BYTES_UNIT);
	return (uint32_t)bytes;
}

void config_read_loader(struct json_view *top, struct config *config)
{
	struct loader_options *loader = &config->loader;
	struct json_view v;

	if (!config_section_begin(top, &v, "loader"))
		return;
	loader->engine = (enum loader_engine)json_view_enum(
		&v, "engine", engine_names, LOADER_AUTO);
	loader->direct = (enum loader_direct)json_view_enum(
		&v, "direct", direct_names, LOADER_DIRECT_AUTO);
	loader->threads =
		(uint32_t)json_view_int(&v, "threads", 1, THREADS_MAX, 0);
	loader->queue_depth = (uint32_t)json_view_int(&v, "queue_depth", 1,
						      QUEUE_DEPTH_MAX, 0);
	loader->block_bytes = read_block_bytes(&v);
	loader->bytes_per_second =
		json_view_bytes(&v, "bytes_per_second", RATE_MIN, RATE_MAX, 0);
	loader->priority = (enum loader_priority)json_view_enum(
		&v, "io_priority", priority_names, LOADER_PRIORITY_NORMAL);
	config_section_end(top, &v);
}

static void check_listen(struct json_view *v, const char *text)
{
	struct sockaddr_storage address;
	socklen_t len;

	if (text && !http_parse_address(text, &address, &len))
		config_fault(v, "listen",
			     "write both in numbers, as \"127.0.0.1:9464\" or "
			     "\"[::]:9464\"",
			     "\"%s\" is not an address and a port", text);
}

void config_read_metrics(struct json_view *top, struct config *config)
{
	struct config_metrics *metrics = &config->metrics;
	struct json_view v;

	if (!config_section_begin(top, &v, "metrics"))
		return;
	if (json_object_size(v.object) == 0)
		config_fault(top, "metrics",
			     "say where, or leave the key out for none",
			     "has neither \"listen\" nor \"path\"");
	metrics->listen = config_string(&v, "listen", NULL);
	check_listen(&v, metrics->listen);
	metrics->path = config_path(&v, "path", NULL);
	check_socket(&v, metrics->path);
	if (metrics->path && config->socket &&
	    !strcmp(metrics->path, config->socket))
		config_fault(&v, "path", "give it a name of its own",
			     "\"%s\" is the control socket", metrics->path);
	config_section_end(top, &v);
}

void config_read_limits(struct json_view *top, struct config *config)
{
	struct json_view v;

	config->max_connections = CONNECTIONS_DFLT;
	if (!config_section_begin(top, &v, "limits"))
		return;
	config->max_connections = (uint32_t)json_view_int(
		&v, "connections", 1, CONNECTIONS_MAX, CONNECTIONS_DFLT);
	config_section_end(top, &v);
}
