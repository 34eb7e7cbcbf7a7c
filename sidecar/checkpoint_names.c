/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint_names.h"

#define PART "{part}"

/* Each "{layer}" and "{part}" as a number; false if there is no room. */
static bool expand(const char *pattern, int32_t layer, uint32_t part,
		   char out[TENSOR_NAME_MAX])
{
	static const char layer_mark[] = "{layer}";
	size_t n = 0;

	while (*pattern && n < TENSOR_NAME_MAX) {
		if (!strncmp(pattern, layer_mark, sizeof(layer_mark) - 1)) {
			n += (size_t)snprintf(out + n, TENSOR_NAME_MAX - n,
					      "%" PRId32, layer);
			pattern += sizeof(layer_mark) - 1;
		} else if (!strncmp(pattern, PART, sizeof(PART) - 1)) {
			n += (size_t)snprintf(out + n, TENSOR_NAME_MAX - n,
					      "%" PRIu32, part);
			pattern += sizeof(PART) - 1;
		} else {
			out[n++] = *pattern++;
		}
	}
	if (n >= TENSOR_NAME_MAX)
		return false;
	out[n] = '\0';
	return n > 0;
}

bool checkpoint_names_part(const char *pattern)
{
	return strstr(pattern, PART);
}

enum engram_status checkpoint_names_missing(const struct checkpoint *c,
					    int32_t layer, const char *what,
					    const char *const *patterns,
					    struct engram_error *err)
{
	char names[400] = "";

	for (; *patterns; patterns++) {
		char name[TENSOR_NAME_MAX];
		const size_t used = strlen(names);

		/* What does not fit any more is left out whole. */
		if (expand(*patterns, layer, 0, name) &&
		    (size_t)snprintf(names + used, sizeof(names) - used,
				     "%s\"%s\"", used ? ", " : "",
				     name) >= sizeof(names) - used)
			names[used] = '\0';
	}
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: layer %" PRId32 ": no %s tensor; looked for %s",
			 c->dir, layer, what, names);
	engram_error_path(err, "%s", c->dir);
	engram_error_fix(err, "download the missing file, or name the tensor "
			      "in the table's \"tensors\"");
	return ENGRAM_ECHECKPOINT;
}

static enum engram_status find_one(struct checkpoint *c,
				   struct checkpoint_shards *shards,
				   const char *pattern, int32_t layer,
				   uint32_t part, struct checkpoint_found *out,
				   struct engram_error *err)
{
	out->tensor = NULL;
	out->pattern = pattern;
	if (!expand(pattern, layer, part, out->name))
		return engram_error_set(err, ENGRAM_EINVAL,
					"tensor pattern \"%.80s\" is too long",
					pattern);
	return checkpoint_shards_find(c, shards, out->name, &out->tensor,
				      &out->file, err);
}

enum engram_status checkpoint_names_next(struct checkpoint *c,
					 struct checkpoint_shards *shards,
					 int32_t layer, uint32_t part,
					 struct checkpoint_found *found,
					 struct engram_error *err)
{
	return find_one(c, shards, found->pattern, layer, part, found, err);
}

enum engram_status checkpoint_names_find(struct checkpoint *c,
					 struct checkpoint_shards *shards,
					 int32_t layer, const char *what,
					 const char *const *patterns,
					 struct checkpoint_found *out,
					 struct engram_error *err)
{
	struct checkpoint_found found;
	enum engram_status status;

	out->tensor = NULL;
	for (const char *const *p = patterns; *p; p++) {
		status = find_one(c, shards, *p, layer, 0, &found, err);
		if (status)
			return status;
		if (!found.tensor)
			continue;
		if (out->tensor) {
			engram_error_set(err, ENGRAM_ECHECKPOINT,
					 "%s: layer %" PRId32 ": two %s "
					 "tensors, \"%s\" and \"%s\"",
					 c->dir, layer, what, out->name,
					 found.name);
			engram_error_path(err, "%s", c->dir);
			engram_error_fix(err, "name the right one in the "
					      "table's \"tensors\"");
			return ENGRAM_ECHECKPOINT;
		}
		*out = found;
	}
	return ENGRAM_OK;
}
