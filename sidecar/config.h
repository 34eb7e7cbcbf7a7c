/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engramd's configuration: one JSON file, every key checked.  The reference
 * is engramd.json(5); the JSON Schema is config/engramd.schema.json.
 */
#ifndef ENGRAMD_CONFIG_H
#define ENGRAMD_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engram_control.h"
#include "engram_error.h"
#include "engram_segment.h"
#include "gather_pool.h"
#include "json.h"
#include "loader.h"
#include "manifest.h"
#include "table_format.h"

enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_LOGFMT = 0, LOG_JSON };
/* What a former engramd has left: read it all back and then lend it, lend it
 * and read it back meanwhile, believe its headers, or remove it. */
enum adopt_mode { ADOPT_VERIFY = 0, ADOPT_BACKGROUND, ADOPT_TRUST, ADOPT_OFF };
enum memory_lock { MEMORY_LOCK_TRY = 0, MEMORY_LOCK_REQUIRE, MEMORY_LOCK_OFF };

/* Who may call what.  Root and engramd's own user always may. */
struct config_access {
	bool anyone; /* `read` without a list; never `change` */
	uid_t *uids;
	size_t num_uids;
	gid_t *gids; /* any group of the peer */
	size_t num_gids;
};

/* How a generation of a table is replaced by the next. */
enum reload_mode { RELOAD_BESIDE = 0, RELOAD_DRAIN_FIRST, RELOAD_IN_PLACE };

struct config_reload {
	enum reload_mode mode;
	uint32_t drain_seconds;	 /* who holds the old one that long is named */
	uint32_t retain_seconds; /* keep the old one so long for a rollback */
	uint32_t settle_seconds; /* who reads has seen by then that it is to
				  * stop, with or without a lease */
};

struct config_table {
	char *name;
	char *checkpoint;
	enum engram_record_layout layout;
	bool load_at_start;
	bool verify; /* read back after loading; default true */
	enum manifest_mode manifest;
	int32_t *layers;
	uint32_t num_layers;	/* 0: all */
	char **weight_patterns; /* NULL-terminated, or NULL */
	char **scale_patterns;
	char *token_map; /* file, or NULL */
	struct table_format format;
	struct config_reload reload;
	uint32_t watch_seconds; /* reload when it changed that long ago; or 0 */
};

/* Where metrics and health are to be had; both NULL: nowhere. */
struct config_metrics {
	char *listen; /* "ADDRESS:PORT" */
	char *path;   /* a Unix socket */
};

struct config {
	char *instance;
	char *socket;
	mode_t socket_mode;
	char *socket_group; /* or NULL */
	struct config_access read, change;
	enum log_level log_level;
	enum log_format log_format;
	struct engram_backing backing;
	enum memory_lock lock;
	enum adopt_mode adopt;
	struct loader_options loader;
	struct gather_options gather;
	struct config_metrics metrics;
	uint32_t max_connections;
	struct config_table *tables;
	size_t num_tables;
	json_t *json; /* as given, for config.get */
};

enum engram_status config_read(const char *file, struct config **out,
			       struct engram_error *err);
/* The same from a text, for config.validate and the fuzzer. */
enum engram_status config_parse(const char *name, const char *text, size_t len,
				struct config **out, struct engram_error *err);
/* One table's object, as in "tables" and in the parameters of `load`. */
enum engram_status config_parse_table(json_t *value, const char *path,
				      const struct json_source *src,
				      enum engram_status status,
				      struct config_table *out,
				      struct engram_error *err);
void config_table_free(struct config_table *table);
void config_free(struct config *config);

#endif
