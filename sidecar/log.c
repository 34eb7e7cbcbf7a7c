/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

/* A process has one stderr, hence one log: the only global state here. */
static _Atomic int current_level = LOG_INFO;
static _Atomic int current_format = LOG_LOGFMT;
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t dropped; /* lines, under write_lock; not yet reported */
static _Atomic uint64_t dropped_ever;

const char *const log_level_names[] = {"error", "warn", "info", "debug", NULL};

struct line {
	char text[4096];
	size_t len;
	bool json;
};

void log_set_level(enum log_level level)
{
	atomic_store(&current_level, (int)level);
}

enum log_level log_get_level(void)
{
	return (enum log_level)atomic_load(&current_level);
}

uint64_t log_dropped(void)
{
	return atomic_load(&dropped_ever);
}

void log_set_format(enum log_format format)
{
	atomic_store(&current_format, (int)format);
}

/* Room is kept for the closing brace and the newline. */
static void put(struct line *line, const char *bytes, size_t len)
{
	if (len > sizeof(line->text) - 4 - line->len)
		len = sizeof(line->text) - 4 - line->len;
	memcpy(line->text + line->len, bytes, len);
	line->len += len;
}

static void put_text(struct line *line, const char *text)
{
	put(line, text, strlen(text));
}

/* Length of the UTF-8 sequence at `s`, 0 if it is not one. */
static size_t utf8_sequence(const unsigned char *s)
{
	size_t len, i;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] < 0xe0)
		len = 2;
	else if ((s[0] & 0xf0) == 0xe0)
		len = 3;
	else if (s[0] >= 0xf0 && s[0] < 0xf5)
		len = 4;
	else
		return 0;
	for (i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if (s[0] == 0xe0 && s[1] < 0xa0) /* overlong */
		return 0;
	if (s[0] == 0xed && s[1] >= 0xa0) /* surrogates */
		return 0;
	if (s[0] == 0xf0 && s[1] < 0x90)
		return 0;
	if (s[0] == 0xf4 && s[1] >= 0x90)
		return 0;
	return len;
}

static void put_quoted(struct line *line, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	char escape[8];
	size_t len;

	put(line, "\"", 1);
	for (; *s; s += len) {
		len = utf8_sequence(s);
		if (len == 0) {
			put_text(line, "\\ufffd");
			len = 1;
		} else if (*s == '"' || *s == '\\') {
			escape[0] = '\\';
			escape[1] = (char)*s;
			put(line, escape, 2);
		} else if (*s < 0x20 || *s == 0x7f) {
			snprintf(escape, sizeof(escape), "\\u%04x", *s);
			put_text(line, escape);
		} else if (line->len + len < sizeof(line->text) - 8) {
			put(line, (const char *)s, len);
		}
	}
	put(line, "\"", 1);
}

/* logfmt leaves plain words unquoted. */
static bool plain(const char *text)
{
	const char *s;

	for (s = text; *s; s++)
		if (*s <= ' ' || *s >= 0x7f || *s == '"' || *s == '=' ||
		    *s == '\\')
			return false;
	return s != text;
}

static void put_key(struct line *line, const char *key)
{
	if (line->len)
		put_text(line, line->json ? "," : " ");
	if (line->json) {
		put_quoted(line, key);
		put(line, ":", 1);
	} else {
		put_text(line, key);
		put(line, "=", 1);
	}
}

static void put_string(struct line *line, const char *key, const char *value)
{
	put_key(line, key);
	if (!value)
		value = "";
	if (!line->json && plain(value))
		put_text(line, value);
	else
		put_quoted(line, value);
}

static void put_time(struct line *line)
{
	struct timespec now;
	struct tm tm;
	char text[48], whole[24];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(whole, sizeof(whole), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text, sizeof(text), "%s.%06ldZ", whole, now.tv_nsec / 1000);
	put_string(line, "time", text);
}

static void put_number(struct line *line, const char *key, const char *number)
{
	put_key(line, key);
	put_text(line, number);
}

static void begin_line(struct line *line, enum log_level level)
{
	line->len = 0;
	line->json = atomic_load(&current_format) == LOG_JSON;
	put_time(line);
	put_string(line, "level", log_level_names[level]);
}

static void end_line(struct line *line)
{
	if (line->json) {
		memmove(line->text + 1, line->text, line->len);
		line->text[0] = '{';
		line->len++;
		line->text[line->len++] = '}';
	}
	line->text[line->len++] = '\n';
}

/* Whoever reads stderr may have stopped reading, and a full pipe must not
 * stop the loop.  A pipe that can be written takes a page, hence a line,
 * without blocking. */
static bool can_write(void)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	int n;

	do
		n = poll(&p, 1, 0);
	while (n < 0 && errno == EINTR);
	return n != 0;
}

static void write_all(const struct line *line)
{
	size_t done = 0;
	ssize_t n;

	/* One write; a rest is only written where stderr is a pipe that
	 * took a part.  A log that can not be written has nowhere to say
	 * so. */
	while (done < line->len) {
		n = write(STDERR_FILENO, line->text + done, line->len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		done += (size_t)n;
	}
}

static void report_dropped(void)
{
	struct line line;
	char number[24];

	snprintf(number, sizeof(number), "%llu", (unsigned long long)dropped);
	begin_line(&line, LOG_WARN);
	put_string(&line, "msg", "nobody read the log: lines were dropped");
	put_number(&line, "lines", number);
	end_line(&line);
	write_all(&line);
	dropped = 0;
}

static void write_line(const struct line *line)
{
	pthread_mutex_lock(&write_lock);
	if (dropped && can_write())
		report_dropped();
	if (!dropped && can_write()) {
		write_all(line);
	} else {
		dropped++;
		atomic_fetch_add(&dropped_ever, 1);
	}
	pthread_mutex_unlock(&write_lock);
}

void log_write(enum log_level level, const struct log_field *fields)
{
	struct line line;
	char number[24];

	if (level > log_get_level())
		return;
	begin_line(&line, level);
	for (; fields->kind != LOG_FIELD_END; fields++) {
		switch (fields->kind) {
		case LOG_FIELD_INT:
			snprintf(number, sizeof(number), "%lld",
				 (long long)fields->integer);
			break;
		case LOG_FIELD_UINT:
			snprintf(number, sizeof(number), "%llu",
				 (unsigned long long)fields->uinteger);
			break;
		default:
			put_string(&line, fields->key, fields->string);
			continue;
		}
		put_number(&line, fields->key, number);
	}
	end_line(&line);
	write_line(&line);
}

void log_failure(enum log_level level, const char *message,
		 const struct engram_error *err)
{
	struct log_field fields[9];
	unsigned int n = 0;

	fields[n++] = (struct log_field)LOG_S("msg", message);
	fields[n++] = (struct log_field)LOG_S("error", err->message);
	fields[n++] = (struct log_field)LOG_S("name",
					      engram_status_name(err->status));
	if (err->fix[0])
		fields[n++] = (struct log_field)LOG_S("fix", err->fix);
	if (err->path[0])
		fields[n++] = (struct log_field)LOG_S("path", err->path);
	if (err->sys_errno)
		fields[n++] = (struct log_field)LOG_I("errno", err->sys_errno);
	if (err->needed || err->available) {
		fields[n++] = (struct log_field)LOG_U("needed", err->needed);
		fields[n++] =
			(struct log_field)LOG_U("available", err->available);
	}
	fields[n] = (struct log_field){.kind = LOG_FIELD_END};
	log_write(level, fields);
}
