/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: a line to stderr for each event, logfmt or JSON, UTC.  Any thread;
 * a line is one write(2), so lines never mix.  Level and format may change at
 * any time.
 *
 *	log_info("table ready", LOG_S("table", name), LOG_U("bytes", n));
 */
#ifndef ENGRAMD_LOG_H
#define ENGRAMD_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "engram_error.h"

enum log_field_kind {
	LOG_FIELD_END = 0,
	LOG_FIELD_STRING,
	LOG_FIELD_INT,
	LOG_FIELD_UINT
};

struct log_field {
	const char *key;
	enum log_field_kind kind;
	union {
		const char *string;
		int64_t integer;
		uint64_t uinteger;
	};
};

#define LOG_S(k, v)                                                 \
	{                                                           \
		.key = (k), .kind = LOG_FIELD_STRING, .string = (v) \
	}
#define LOG_I(k, v)                                               \
	{                                                         \
		.key = (k), .kind = LOG_FIELD_INT, .integer = (v) \
	}
#define LOG_U(k, v)                                                 \
	{                                                           \
		.key = (k), .kind = LOG_FIELD_UINT, .uinteger = (v) \
	}

/* The message is the first field. */
#define log_at(level, message, ...)                  \
	log_write(level, (const struct log_field[]){ \
				 LOG_S("msg", message), ##__VA_ARGS__, {0}})
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_at(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_at(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
void log_set_format(enum log_format format);

/* Lines that nobody read, since the start. */
uint64_t log_dropped(void);

/* NULL-terminated, in the order of enum log_level. */
extern const char *const log_level_names[];

/* `fields` ends with a field whose kind is LOG_FIELD_END.  A line that does
 * not fit 4 KiB is cut. */
void log_write(enum log_level level, const struct log_field *fields);

/* One line for an error: its message, fix, path, errno and figures. */
void log_failure(enum log_level level, const char *message,
		 const struct engram_error *err);

#endif
