/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_parts.h"

void config_fault(struct json_view *v, const char *key, const char *fix,
		  const char *fmt, ...)
{
	char text[sizeof(v->err->message)];
	va_list args;

	if (v->failed)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	json_view_fail(v, key, "%s", text);
	engram_error_fix(v->err, "%s", fix);
}

void config_no_memory(struct json_view *v)
{
	if (v->failed)
		return;
	v->failed = true;
	v->status = engram_error_set(v->err, ENGRAM_ENOMEM, "no memory");
}

bool config_section_begin(struct json_view *top, struct json_view *v,
			  const char *key)
{
	json_t *object = json_view_object(top, key);
	char path[sizeof(v->path)];

	if (!object)
		return false;
	if ((size_t)snprintf(path, sizeof(path), "%s%s%s", top->path,
			     top->path[0] ? "." : "", key) >= sizeof(path))
		return false;
	json_view_begin(v, object, path, top->src, top->status, top->err);
	return true;
}

void config_join(struct json_view *top, const struct json_view *v)
{
	if (!v->failed || top->failed)
		return;
	top->failed = true;
	top->status = v->status;
}

void config_section_end(struct json_view *top, struct json_view *v)
{
	json_view_end(v);
	config_join(top, v);
}

static char *copy(struct json_view *v, const char *text)
{
	char *out = strdup(text);

	if (!out)
		config_no_memory(v);
	return out;
}

char *config_string(struct json_view *v, const char *key, const char *dflt)
{
	const char *text = json_view_string(v, key, dflt);

	if (v->failed || !text)
		return NULL;
	if (text[0] == '\0') {
		config_fault(v, key, "leave the key out for the default",
			     "is an empty string");
		return NULL;
	}
	if (strlen(text) > CONFIG_STRING_MAX) {
		config_fault(v, key, "use a shorter one",
			     "is %zu bytes long, at most %d are allowed",
			     strlen(text), CONFIG_STRING_MAX);
		return NULL;
	}
	return copy(v, text);
}

/* "DIR/PATH", where DIR is that of the configuration file. */
static char *resolve(struct json_view *v, const char *path)
{
	const char *name = v->src->name;
	const char *slash = strrchr(name, '/');
	int dir = slash ? (int)(slash - name) + 1 : 0;
	char *cwd = NULL, *out;

	if (name[0] != '/') {
		cwd = getcwd(NULL, 0);
		if (!cwd && errno == ENOMEM) {
			config_no_memory(v);
			return NULL;
		}
		/* A working directory that was removed: stay relative. */
	}
	if (asprintf(&out, "%s%s%.*s%s", cwd ? cwd : "", cwd ? "/" : "", dir,
		     name, path) < 0) {
		out = NULL;
		config_no_memory(v);
	}
	free(cwd);
	return out;
}

char *config_path(struct json_view *v, const char *key, const char *dflt)
{
	char *path = config_string(v, key, dflt);
	char *out;

	if (!path || path[0] == '/')
		return path;
	if (v->src && v->src->name) {
		out = resolve(v, path);
	} else {
		config_fault(v, key, "start it with \"/\"",
			     "\"%s\" is a relative path", path);
		out = NULL;
	}
	free(path);
	return out;
}

char *config_table_name(struct json_view *v, const char *key)
{
	char *name = config_string(v, key, NULL);

	if (!name || engram_name_valid(name))
		return name;
	config_fault(v, key,
		     "use 1 to 63 of A-Z a-z 0-9 _ - and single dots inside",
		     "\"%s\" is not a valid name", name);
	free(name);
	return NULL;
}

char *config_instance(struct json_view *v, const char *key, const char *dflt)
{
	char *name = config_string(v, key, dflt);

	if (!name || engram_instance_valid(name))
		return name;
	/* A dot would end it in the names of its segments. */
	config_fault(v, key, "use 1 to 63 of A-Z a-z 0-9 _ -",
		     "\"%s\" is not a valid name", name);
	free(name);
	return NULL;
}
