/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engram_segment.h"
#include "segment.h"

static int plain(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (c >= '0' && c <= '9') || c == '_' || c == '-';
}

int engram_name_valid(const char *name)
{
	size_t len = strlen(name);

	if (!len || len > ENGRAM_NAME_MAX || name[0] == '.' ||
	    name[len - 1] == '.')
		return 0;
	for (size_t i = 0; i < len; i++)
		if (!plain(name[i]) && (name[i] != '.' || name[i - 1] == '.'))
			return 0;
	return 1;
}

int engram_instance_valid(const char *name)
{
	return engram_name_valid(name) && !strchr(name, '.');
}

void engram_segment_copy_name(char out[256], const char *instance,
			      const char *table, int32_t layer_id,
			      uint64_t generation, uint32_t replica)
{
	int len = snprintf(out, 256, "engramd.%s.%s.%" PRId32 ".g%" PRIu64,
			   instance, table, layer_id, generation);

	if (replica && len > 0 && len < 256)
		snprintf(out + len, 256 - (size_t)len, ".n%" PRIu32,
			 replica - 1);
}

void engram_segment_name(char out[256], const char *instance, const char *table,
			 int32_t layer_id, uint64_t generation)
{
	engram_segment_copy_name(out, instance, table, layer_id, generation, 0);
}

void control_page_name(char out[256], const char *instance)
{
	snprintf(out, 256, "engramd.%s.ctl", instance);
}

/* The number behind the last `mark` in [text, *end), which it cuts off. */
static int cut_number(const char *text, const char **end, const char *mark,
		      uint64_t max, uint64_t *out)
{
	const size_t mark_len = strlen(mark);
	const char *p = *end;
	uint64_t number = 0, unit = 1;

	while (p > text && p[-1] >= '0' && p[-1] <= '9') {
		const uint64_t digit = (uint64_t)(*--p - '0');

		/* 19 digits always fit; no name has more. */
		if (*end - p > 19)
			return 0;
		number += digit * unit;
		unit *= 10;
	}
	if (p == *end || (*p == '0' && *end - p > 1) || number > max ||
	    p - text < (ptrdiff_t)mark_len ||
	    memcmp(p - mark_len, mark, mark_len))
		return 0;
	*end = p - mark_len;
	*out = number;
	return 1;
}

static int copy_name(char out[ENGRAM_NAME_MAX + 1], const char *begin,
		     const char *end, int (*valid)(const char *))
{
	if (end <= begin || end - begin > ENGRAM_NAME_MAX)
		return 0;
	memcpy(out, begin, (size_t)(end - begin));
	out[end - begin] = '\0';
	return valid(out);
}

int segment_name_parse(const char *name, struct engram_segment_entry *out)
{
	static const char prefix[] = "engramd.", control[] = ".ctl";
	static const char temporary[] = SEGMENT_TEMPORARY;
	const char *begin = name + sizeof(prefix) - 1, *dot, *end;
	uint64_t layer, generation, node;

	memset(out, 0, sizeof(*out));
	if (strlen(name) >= sizeof(out->name) ||
	    strncmp(name, prefix, sizeof(prefix) - 1))
		return 0;
	memcpy(out->name, name, strlen(name));
	/* Instance names have no dot, so the first one ends it. */
	dot = strchr(begin, '.');
	if (!dot ||
	    !copy_name(out->instance, begin, dot, engram_instance_valid))
		return 0;
	if (!strcmp(dot, control)) {
		out->control = 1;
		return 1;
	}
	end = name + strlen(name);
	if (end - dot > (ptrdiff_t)sizeof(temporary) &&
	    !strcmp(end - (sizeof(temporary) - 1), temporary)) {
		out->temporary = 1;
		end -= sizeof(temporary) - 1;
	}
	/* What ends in a generation has no node behind it. */
	if (cut_number(dot, &end, ".n", ENGRAM_NODES - 1, &node))
		out->replica = (uint32_t)node + 1;
	if (!cut_number(dot, &end, ".g", UINT64_MAX, &generation) ||
	    !cut_number(dot, &end, ".", INT32_MAX, &layer) ||
	    !copy_name(out->table, dot + 1, end, engram_name_valid))
		return 0;
	out->generation = generation;
	out->layer_id = (int32_t)layer;
	return 1;
}
