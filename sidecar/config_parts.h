/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files that read the configuration share.  All of it works on
 * json_views: the first fault sticks, and is looked at once, at the end.
 */
#ifndef ENGRAMD_CONFIG_PARTS_H
#define ENGRAMD_CONFIG_PARTS_H

#include "config.h"

#define CONFIG_TABLES_MAX  ENGRAM_CONTROL_TABLES
#define CONFIG_IDS_MAX	   1024 /* of an access list */
#define CONFIG_STRING_MAX  4095
#define CONFIG_PATTERN_MAX 16 /* of one kind of tensor */
#define CONFIG_DIM_MAX	   16384

/* A fault with a fix of its own; keeps an earlier one. */
void config_fault(struct json_view *v, const char *key, const char *fix,
		  const char *fmt, ...) ENGRAM_PRINTF(4, 5);
void config_no_memory(struct json_view *v);

/* Start on the object at `key` of `top`; false if there is none to read. */
bool config_section_begin(struct json_view *top, struct json_view *v,
			  const char *key);
/* Unknown members are a fault; hands any fault on to `top`. */
void config_section_end(struct json_view *top, struct json_view *v);
/* Hand a fault of `v` on to `top`. */
void config_join(struct json_view *top, const struct json_view *v);

/* malloc'd copies; NULL when the key is absent or on a fault. */
char *config_string(struct json_view *v, const char *key, const char *dflt);
/* A relative path is taken from the directory of the configuration file, and
 * refused when the text came from no file. */
char *config_path(struct json_view *v, const char *key, const char *dflt);
/* Instance and table names. */
char *config_table_name(struct json_view *v, const char *key);
char *config_instance(struct json_view *v, const char *key, const char *dflt);

/* Layer ids, each once, into out[size of the array]; how many. */
uint32_t config_layers(struct json_view *v, const json_t *array, int32_t *out);

/* The parts of a table: "rows" first, which sets every default. */
void config_read_rows(struct json_view *top, struct table_format *format);
void config_read_hash(struct json_view *top, struct table_format *format);

/* The parts of struct config; each reads one key of the top level. */
void config_read_socket(struct json_view *top, struct config *config);
void config_read_access(struct json_view *top, struct config *config);
void config_read_log(struct json_view *top, struct config *config);
void config_read_memory(struct json_view *top, struct config *config);
void config_read_loader(struct json_view *top, struct config *config);
void config_read_gather(struct json_view *top, struct config *config);
void config_read_metrics(struct json_view *top, struct config *config);
void config_read_limits(struct json_view *top, struct config *config);
void config_read_tables(struct json_view *top, struct config *config);

#endif
