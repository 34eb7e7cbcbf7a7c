/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors_case.h"

_Noreturn void golden_die(const char *path, const char *what, const char *name)
{
	fprintf(stderr, "%s: %s%s%s\n", path, what, name ? " " : "",
		name ? name : "");
	exit(1);
}

static char *read_file(const char *path, size_t *size)
{
	FILE *f = fopen(path, "rb");
	char *bytes;
	long end;

	if (!f || fseek(f, 0, SEEK_END) || (end = ftell(f)) < 8)
		golden_die(path, "cannot read", NULL);
	bytes = malloc((size_t)end);
	rewind(f);
	if (!bytes || fread(bytes, 1, (size_t)end, f) != (size_t)end)
		golden_die(path, "cannot read", NULL);
	fclose(f);
	*size = (size_t)end;
	return bytes;
}

void golden_open(struct golden_case *c, const char *path)
{
	json_error_t error;
	uint64_t header_size;
	size_t size;

	c->path = path;
	c->bytes = read_file(path, &size);
	memcpy(&header_size, c->bytes, sizeof(header_size));
	if (header_size > size - 8)
		golden_die(path, "header longer than the file", NULL);
	c->header = json_loadb(c->bytes + 8, header_size, 0, &error);
	if (!c->header)
		golden_die(path, "header:", error.text);
	/* Writers need not align the data; the kernels' arrays are aligned. */
	c->data_size = size - 8 - header_size;
	memmove(c->bytes, c->bytes + 8 + header_size, c->data_size);
	c->data = c->bytes;
}

void golden_close(struct golden_case *c)
{
	json_decref(c->header);
	free(c->bytes);
}

const char *golden_text(const struct golden_case *c, const char *key)
{
	json_t *meta = json_object_get(c->header, "__metadata__");
	const char *text = json_string_value(json_object_get(meta, key));

	if (!text)
		golden_die(c->path, "no metadata", key);
	return text;
}

int64_t golden_int(const struct golden_case *c, const char *key)
{
	return strtoll(golden_text(c, key), NULL, 10);
}

double golden_real(const struct golden_case *c, const char *key)
{
	return strtod(golden_text(c, key), NULL);
}

size_t golden_list(const struct golden_case *c, const char *key,
		   int64_t *values, size_t max)
{
	json_t *list = json_loads(golden_text(c, key), 0, NULL), *item;
	size_t i;

	if (!json_is_array(list) || json_array_size(list) > max)
		golden_die(c->path, "metadata is not a short list:", key);
	json_array_foreach(list, i, item) values[i] = json_integer_value(item);
	json_decref(list);
	return i;
}

static size_t dtype_size(const char *dtype)
{
	if (!strcmp(dtype, "I64"))
		return 8;
	if (!strcmp(dtype, "I32"))
		return 4;
	if (!strcmp(dtype, "I16") || !strcmp(dtype, "BF16"))
		return 2;
	return 1;
}

void *golden_tensor(const struct golden_case *c, const char *name,
		    const char *dtype, int ndim, int64_t *shape)
{
	json_t *tensor = json_object_get(c->header, name), *dims, *dim;
	size_t bytes = dtype_size(dtype), i;
	int64_t begin, end;
	const char *found;

	if (!tensor)
		return NULL;
	if (json_unpack(tensor, "{s:s, s:o, s:[I, I]}", "dtype", &found,
			"shape", &dims, "data_offsets", &begin, &end))
		golden_die(c->path, "damaged tensor", name);
	if (strcmp(found, dtype) || json_array_size(dims) != (size_t)ndim)
		golden_die(c->path, "unexpected dtype or rank:", name);
	json_array_foreach(dims, i, dim)
	{
		shape[i] = json_integer_value(dim);
		bytes *= (size_t)shape[i];
	}
	if (begin < 0 || end < begin || (uint64_t)end > c->data_size ||
	    (size_t)(end - begin) != bytes ||
	    (size_t)begin % dtype_size(dtype) != 0)
		golden_die(c->path, "damaged tensor", name);
	return c->data + begin;
}

void *golden_need(const struct golden_case *c, const char *name,
		  const char *dtype, int ndim, int64_t *shape)
{
	void *data = golden_tensor(c, name, dtype, ndim, shape);

	if (!data)
		golden_die(c->path, "no tensor", name);
	return data;
}
