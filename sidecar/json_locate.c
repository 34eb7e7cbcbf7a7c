/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

/*
 * A walk over text that jansson has accepted, to find where the value at a
 * path begins; jansson keeps no places.  Because the text is valid, nothing
 * is checked twice here, and nesting is bounded by ENGRAM_DEPTH_MAX.
 */
struct walk {
	const char *p, *end;
};

static void skip_space(struct walk *w)
{
	while (w->p < w->end && strchr(" \t\r\n", *w->p))
		w->p++;
}

static void skip_string(struct walk *w)
{
	for (w->p++; w->p < w->end && *w->p != '"'; w->p++)
		if (*w->p == '\\')
			w->p++;
	w->p++;
}

static void skip_value(struct walk *w)
{
	unsigned int depth = 0;

	do {
		skip_space(w);
		if (w->p >= w->end)
			return;
		if (*w->p == '"') {
			skip_string(w);
			continue;
		}
		if (*w->p == '{' || *w->p == '[')
			depth++;
		else if (*w->p == '}' || *w->p == ']')
			depth--;
		else if (*w->p != ',' && *w->p != ':') {
			while (w->p < w->end && !strchr(" \t\r\n,:]}", *w->p))
				w->p++;
			continue;
		}
		w->p++;
	} while (depth);
}

/* The rest of `path` behind its first step, if that is `key`. */
static const char *behind_key(const char *path, const char *key, size_t len)
{
	if (*path == '.')
		path++;
	if (strncmp(path, key, len))
		return NULL;
	path += len;
	return *path == '\0' || *path == '.' || *path == '[' ? path : NULL;
}

static bool walk_to(struct walk *w, const char *path);

static bool walk_object(struct walk *w, const char *path)
{
	w->p++;
	for (skip_space(w); w->p < w->end && *w->p != '}'; skip_space(w)) {
		const char *key = w->p + 1, *rest;
		struct walk inner;

		skip_string(w);
		rest = behind_key(path, key, (size_t)(w->p - 1 - key));
		skip_space(w);
		w->p++; /* the colon */
		skip_space(w);
		inner = *w;
		/* A key with a dot looks like two steps: try all members. */
		if (rest && walk_to(&inner, rest)) {
			*w = inner;
			return true;
		}
		skip_value(w);
		skip_space(w);
		if (w->p < w->end && *w->p == ',')
			w->p++;
	}
	return false;
}

static bool walk_array(struct walk *w, const char *path)
{
	unsigned long wanted, i;
	int used = 0;

	if (sscanf(path, "[%lu]%n", &wanted, &used) != 1 || !used)
		return false;
	w->p++;
	for (i = 0, skip_space(w); w->p < w->end && *w->p != ']';
	     i++, skip_space(w)) {
		if (i == wanted)
			return walk_to(w, path + used);
		skip_value(w);
		skip_space(w);
		if (w->p < w->end && *w->p == ',')
			w->p++;
	}
	return false;
}

static bool walk_to(struct walk *w, const char *path)
{
	skip_space(w);
	if (!*path)
		return true;
	if (w->p < w->end && *w->p == '{')
		return walk_object(w, path);
	if (w->p < w->end && *w->p == '[')
		return walk_array(w, path);
	return false;
}

unsigned int json_source_line(const struct json_source *src, const char *path)
{
	struct walk w;
	unsigned int line = 1;

	if (!src->text)
		return 0;
	w = (struct walk){.p = src->text, .end = src->text + src->len};
	if (!walk_to(&w, path))
		return 0;
	for (const char *p = src->text; p < w.p; p++)
		line += *p == '\n';
	return line;
}
