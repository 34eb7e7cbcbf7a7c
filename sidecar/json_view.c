/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static void join(char *out, size_t size, const char *path, const char *key)
{
	snprintf(out, size, "%s%s%s", path, *path && key && *key ? "." : "",
		 key ? key : "");
}

/* "FILE:LINE: path: " before a message, as far as they are known. */
static void locate(const struct json_view *v, const char *path)
{
	unsigned int line = 0;

	if (*path)
		engram_error_context(v->err, "%s", path);
	engram_error_path(v->err, "%s", path);
	if (!v->src || !v->src->name)
		return;
	line = json_source_line(v->src, path);
	/* Something absent is shown where its object begins. */
	if (!line)
		line = json_source_line(v->src, v->path);
	engram_error_context(v->err, "%s:%u", v->src->name, line);
}

void json_view_fail(struct json_view *v, const char *key, const char *fmt, ...)
{
	char text[512], path[256];
	va_list args;

	if (v->failed)
		return;
	v->failed = true;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	join(path, sizeof(path), v->path, key);
	engram_error_set(v->err, v->status, "%s", text);
	locate(v, path);
}

static const char *type_name(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number with a fraction";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	default:
		return "null";
	}
}

static void wrong_type(struct json_view *v, const char *key, const char *want,
		       const json_t *value)
{
	json_view_fail(v, key, "must be %s, not %s", want, type_name(value));
}

void json_view_begin(struct json_view *v, json_t *value, const char *path,
		     const struct json_source *src, enum engram_status status,
		     struct engram_error *err)
{
	memset(v, 0, sizeof(*v));
	v->object = value;
	v->src = src;
	v->status = status;
	v->err = err;
	snprintf(v->path, sizeof(v->path), "%s", path);
	if (!json_is_object(value))
		json_view_fail(v, NULL, "must be an object, not %s",
			       value ? type_name(value) : "nothing");
}

/* Remember that `key` is allowed; its value, or NULL. */
static json_t *ask(struct json_view *v, const char *key)
{
	unsigned int i;

	for (i = 0; i < v->num_asked; i++)
		if (!strcmp(v->asked[i], key))
			break;
	if (i == v->num_asked && i < JSON_VIEW_KEYS)
		v->asked[v->num_asked++] = key;
	return v->failed ? NULL : json_object_get(v->object, key);
}

static bool was_asked(const struct json_view *v, const char *key)
{
	for (unsigned int i = 0; i < v->num_asked; i++)
		if (!strcmp(v->asked[i], key))
			return true;
	return false;
}

static void fail_unknown(struct json_view *v, const char *key)
{
	const char *words[JSON_VIEW_KEYS + 1] = {NULL};
	char list[256] = "";
	const char *near;

	memcpy(words, v->asked, v->num_asked * sizeof(words[0]));
	near = json_nearest(key, words);
	if (near)
		json_view_fail(v, key, "unknown key; did you mean \"%s\"?",
			       near);
	else
		json_view_fail(v, key, "unknown key");
	for (unsigned int i = 0; i < v->num_asked; i++) {
		size_t used = strlen(list);

		snprintf(list + used, sizeof(list) - used, "%s%s",
			 i ? ", " : "", v->asked[i]);
	}
	if (v->num_asked)
		engram_error_fix(v->err, "allowed here: %s", list);
	else
		engram_error_fix(v->err, "nothing is allowed here");
}

enum engram_status json_view_end(struct json_view *v)
{
	const char *key;
	json_t *value;

	if (!v->failed)
		json_object_foreach(v->object, key,
				    value) if (!v->failed && !was_asked(v, key))
			fail_unknown(v, key);
	return json_view_result(v);
}

enum engram_status json_view_result(const struct json_view *v)
{
	return v->failed ? v->status : ENGRAM_OK;
}

bool json_view_has(struct json_view *v, const char *key)
{
	return ask(v, key) != NULL;
}

void json_view_require(struct json_view *v, const char *key, const char *what)
{
	if (!v->failed && !ask(v, key))
		json_view_fail(v, key, "is missing: %s", what);
}

const char *json_view_string(struct json_view *v, const char *key,
			     const char *dflt)
{
	json_t *value = ask(v, key);

	if (!value)
		return dflt;
	if (!json_is_string(value)) {
		wrong_type(v, key, "a string", value);
		return dflt;
	}
	/* C strings end at NUL; a name that goes on behind it would be
	 * another name to whoever wrote it. */
	if (strlen(json_string_value(value)) != json_string_length(value)) {
		json_view_fail(v, key, "must not contain \\u0000");
		return dflt;
	}
	return json_string_value(value);
}

int64_t json_view_int(struct json_view *v, const char *key, int64_t min,
		      int64_t max, int64_t dflt)
{
	json_t *value = ask(v, key);
	int64_t number;

	if (!value)
		return dflt;
	if (!json_is_integer(value)) {
		wrong_type(v, key, "an integer", value);
		return dflt;
	}
	number = json_integer_value(value);
	if (number >= min && number <= max)
		return number;
	json_view_fail(v, key, "must be %" PRId64 "..%" PRId64 ", not %" PRId64,
		       min, max, number);
	return dflt;
}

double json_view_real(struct json_view *v, const char *key, double min,
		      double max, double dflt)
{
	json_t *value = ask(v, key);
	double number;

	if (!value)
		return dflt;
	if (!json_is_number(value)) {
		wrong_type(v, key, "a number", value);
		return dflt;
	}
	number = json_number_value(value);
	if (number >= min && number <= max)
		return number;
	json_view_fail(v, key, "must be %g..%g, not %g", min, max, number);
	return dflt;
}

bool json_view_bool(struct json_view *v, const char *key, bool dflt)
{
	json_t *value = ask(v, key);

	if (!value)
		return dflt;
	if (!json_is_boolean(value)) {
		wrong_type(v, key, "true or false", value);
		return dflt;
	}
	return json_is_true(value);
}

int json_view_enum(struct json_view *v, const char *key,
		   const char *const *names, int dflt)
{
	const char *text = json_view_string(v, key, NULL);
	char list[256] = "";

	if (!text)
		return dflt;
	for (int i = 0; names[i]; i++) {
		size_t used = strlen(list);

		if (!strcmp(text, names[i]))
			return i;
		snprintf(list + used, sizeof(list) - used, "%s\"%s\"",
			 !i		? ""
			 : names[i + 1] ? ", "
					: " or ",
			 names[i]);
	}
	json_view_fail(v, key, "must be %s, not \"%.80s\"", list, text);
	return dflt;
}

/* "64KiB", "1GiB", "4096"; false for anything else and for overflow. */
static bool parse_bytes(const char *text, uint64_t *out)
{
	static const struct {
		const char *name;
		unsigned int shift;
	} units[] = {{"", 0},	  {"B", 0},    {"KiB", 10},
		     {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
	uint64_t number;
	char *end;

	if (*text < '0' || *text > '9' || strlen(text) > 24)
		return false;
	number = strtoull(text, &end, 10);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(end, units[i].name)) {
			*out = number << units[i].shift;
			return *out >> units[i].shift == number &&
			       number < UINT64_MAX;
		}
	return false;
}

uint64_t json_view_bytes(struct json_view *v, const char *key, uint64_t min,
			 uint64_t max, uint64_t dflt)
{
	json_t *value = ask(v, key);
	uint64_t number = 0;
	bool good;

	if (!value)
		return dflt;
	if (json_is_string(value)) {
		good = parse_bytes(json_string_value(value), &number);
	} else {
		good = json_is_integer(value) && json_integer_value(value) >= 0;
		number = (uint64_t)json_integer_value(value);
	}
	if (!good) {
		json_view_fail(v, key,
			       "must be a size such as 65536, \"64KiB\", "
			       "\"4MiB\" or \"1GiB\"");
		return dflt;
	}
	if (number >= min && number <= max)
		return number;
	json_view_fail(v, key,
		       "must be %" PRIu64 "..%" PRIu64 " bytes, not %" PRIu64,
		       min, max, number);
	return dflt;
}

json_t *json_view_array(struct json_view *v, const char *key, size_t min_items,
			size_t max_items)
{
	json_t *value = ask(v, key);

	if (!value)
		return NULL;
	if (!json_is_array(value)) {
		wrong_type(v, key, "an array", value);
		return NULL;
	}
	if (json_array_size(value) >= min_items &&
	    json_array_size(value) <= max_items)
		return value;
	json_view_fail(v, key, "must have %zu..%zu items, not %zu", min_items,
		       max_items, json_array_size(value));
	return NULL;
}

json_t *json_view_object(struct json_view *v, const char *key)
{
	json_t *value = ask(v, key);

	if (!value || json_is_object(value))
		return value;
	wrong_type(v, key, "an object", value);
	return NULL;
}

json_t *json_view_any(struct json_view *v, const char *key)
{
	return ask(v, key);
}
