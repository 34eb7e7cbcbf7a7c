/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "identity.h"
#include "json.h"
#include "safetensors.h"

struct parse {
	const char *path;
	uint64_t data_begin; /* in the file */
	uint64_t data_bytes;
	struct engram_error *err;
};

static enum engram_status bad(const struct parse *p, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);

static enum engram_status bad(const struct parse *p, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	engram_error_set(p->err, ENGRAM_ECHECKPOINT, "%s: %s", p->path, text);
	engram_error_path(p->err, "%s", p->path);
	engram_error_fix(p->err, "download the file again");
	return ENGRAM_ECHECKPOINT;
}

/* Bytes of an element; 0 for a dtype that is not known. */
static uint64_t element_bytes(const char *dtype)
{
	static const struct {
		const char *name;
		uint64_t bytes;
	} known[] = {{"BOOL", 1},    {"U8", 1},	     {"I8", 1},	 {"F8_E4M3", 1},
		     {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
		     {"F16", 2},     {"BF16", 2},    {"I32", 4}, {"U32", 4},
		     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(dtype, known[i].name))
			return known[i].bytes;
	return 0;
}

static enum engram_status read_shape(const struct parse *p, const char *name,
				     const json_t *shape,
				     struct safetensors_tensor *t,
				     uint64_t *elements)
{
	*elements = 1;
	if (!json_is_array(shape) ||
	    json_array_size(shape) > SAFETENSORS_RANK_MAX)
		return bad(p,
			   "tensor \"%s\": shape must be an array of at "
			   "most %d numbers",
			   name, SAFETENSORS_RANK_MAX);
	t->rank = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < t->rank; i++) {
		const json_t *value = json_array_get(shape, i);
		const json_int_t n = json_integer_value(value);

		if (!json_is_integer(value) || n < 0)
			return bad(p,
				   "tensor \"%s\": shape[%u] must be a "
				   "number from 0",
				   name, i);
		t->shape[i] = (uint64_t)n;
		if (__builtin_mul_overflow(*elements, t->shape[i], elements))
			return bad(p, "tensor \"%s\": its shape overflows",
				   name);
	}
	return ENGRAM_OK;
}

static enum engram_status read_place(const struct parse *p, const char *name,
				     const json_t *offsets,
				     struct safetensors_tensor *t)
{
	const json_t *first = json_array_get(offsets, 0);
	const json_t *last = json_array_get(offsets, 1);
	const json_int_t begin = json_integer_value(first);
	const json_int_t end = json_integer_value(last);

	if (json_array_size(offsets) != 2 || !json_is_integer(first) ||
	    !json_is_integer(last))
		return bad(p, "tensor \"%s\": data_offsets must be two numbers",
			   name);
	if (begin < 0 || end < begin)
		return bad(p,
			   "tensor \"%s\": data_offsets [%" PRId64 ", %" PRId64
			   "] are not a range",
			   name, (int64_t)begin, (int64_t)end);
	if ((uint64_t)end > p->data_bytes)
		return bad(p,
			   "tensor \"%s\": ends at byte %" PRId64
			   " of the data, the file has %" PRIu64,
			   name, (int64_t)end, p->data_bytes);
	t->offset = p->data_begin + (uint64_t)begin;
	t->bytes = (uint64_t)(end - begin);
	return ENGRAM_OK;
}

static enum engram_status read_tensor(const struct parse *p, const char *name,
				      const json_t *value,
				      struct safetensors_tensor *t)
{
	const char *dtype = json_string_value(json_object_get(value, "dtype"));
	enum engram_status status;
	uint64_t elements, unit;

	if (!json_is_object(value))
		return bad(p, "tensor \"%s\": must be an object", name);
	if (!dtype || strlen(dtype) >= sizeof(t->dtype))
		return bad(p, "tensor \"%s\": dtype is missing or too long",
			   name);
	memcpy(t->dtype, dtype, strlen(dtype));
	status = read_shape(p, name, json_object_get(value, "shape"), t,
			    &elements);
	if (!status)
		status = read_place(p, name,
				    json_object_get(value, "data_offsets"), t);
	if (status)
		return status;
	unit = element_bytes(dtype);
	if (unit &&
	    (elements > UINT64_MAX / unit || elements * unit != t->bytes))
		return bad(p,
			   "tensor \"%s\": its shape has %" PRIu64
			   " elements of %" PRIu64 " bytes (%s), but "
			   "data_offsets span %" PRIu64 " bytes",
			   name, elements, unit, dtype, t->bytes);
	t->name = strdup(name);
	if (!t->name)
		return engram_error_set(p->err, ENGRAM_ENOMEM,
					"no memory for a tensor's name");
	return ENGRAM_OK;
}

static int by_offset(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static enum engram_status check_overlap(const struct parse *p,
					struct safetensors *st)
{
	qsort(st->tensors, st->num_tensors, sizeof(*st->tensors), by_offset);
	for (size_t i = 1; i < st->num_tensors; i++) {
		const struct safetensors_tensor *a = &st->tensors[i - 1];
		const struct safetensors_tensor *b = &st->tensors[i];

		if (a->offset + a->bytes > b->offset)
			return bad(p, "tensors \"%s\" and \"%s\" overlap",
				   a->name, b->name);
	}
	return ENGRAM_OK;
}

static enum engram_status read_tensors(const struct parse *p, json_t *root,
				       struct safetensors *st)
{
	enum engram_status status;
	const char *name;
	json_t *value;

	if (!json_is_object(root))
		return bad(p, "header: must be an object");
	st->tensors = calloc(json_object_size(root) + 1, sizeof(*st->tensors));
	if (!st->tensors)
		return engram_error_set(p->err, ENGRAM_ENOMEM,
					"no memory for %zu tensors",
					json_object_size(root));
	json_object_foreach(root, name, value)
	{
		if (!strcmp(name, "__metadata__"))
			continue;
		status = read_tensor(p, name, value,
				     &st->tensors[st->num_tensors]);
		if (status)
			return status;
		st->num_tensors++;
	}
	return check_overlap(p, st);
}

static enum engram_status read_exactly(int fd, const char *path, void *out,
				       size_t len, off_t at,
				       struct engram_error *err)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (char *)out + done, len - done,
				  at + (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return engram_error_sys(err, errno, "read %s", path);
		if (!n)
			return engram_error_set(err, ENGRAM_ECHECKPOINT,
						"%s: shrank while it was read",
						path);
		done += (size_t)n;
	}
	return ENGRAM_OK;
}

/* The header's text, malloc'd, and where the data lies. */
static enum engram_status read_header(struct parse *p, int fd,
				      struct safetensors *st, char **text,
				      uint64_t *len)
{
	const uint64_t size = st->identity.size;
	enum engram_status status;
	uint8_t le[8];

	*len = 0;
	if (size < sizeof(le))
		return bad(p,
			   "%" PRIu64 " bytes: too short to be a "
			   "safetensors file",
			   size);
	status = read_exactly(fd, p->path, le, sizeof(le), 0, p->err);
	if (status)
		return status;
	for (int i = 0; i < 8; i++)
		*len |= (uint64_t)le[i] << 8 * i;
	if (!*len)
		return bad(p, "header: its length is 0");
	if (*len > size - sizeof(le))
		return bad(p,
			   "header: its length is %" PRIu64
			   ", the file has %" PRIu64 " bytes",
			   *len, size);
	if (*len > SAFETENSORS_HEADER_MAX)
		return bad(p,
			   "header: its length is %" PRIu64
			   ", at most %u is accepted",
			   *len, SAFETENSORS_HEADER_MAX);
	p->data_begin = sizeof(le) + *len;
	p->data_bytes = size - p->data_begin;
	*text = malloc(*len);
	if (!*text)
		return engram_error_set(
			p->err, ENGRAM_ENOMEM,
			"no memory for a header of %" PRIu64 " bytes", *len);
	return read_exactly(fd, p->path, *text, *len, sizeof(le), p->err);
}

static enum engram_status parse_header(const struct parse *p, const char *text,
				       uint64_t len, struct safetensors *st)
{
	struct json_source src;
	enum engram_status status;

	st->identity.header_hash = XXH3_64bits(text, len);
	status = json_source_parse(&src, NULL, text, len, ENGRAM_ECHECKPOINT,
				   p->err);
	if (status) {
		engram_error_context(p->err, "%s: header", p->path);
		engram_error_fix(p->err, "download the file again");
		return status;
	}
	status = read_tensors(p, src.root, st);
	json_source_free(&src);
	return status;
}

enum engram_status safetensors_read(const char *path, struct safetensors *out,
				    struct engram_error *err)
{
	struct parse p = {.path = path, .err = err};
	enum engram_status status;
	char *text = NULL;
	uint64_t len;
	int fd;

	memset(out, 0, sizeof(*out));
	status = identity_open(path, &fd, &out->identity, err);
	if (status)
		return status;
	status = read_header(&p, fd, out, &text, &len);
	if (!status)
		status = parse_header(&p, text, len, out);
	free(text);
	close(fd);
	if (status) {
		engram_error_path(err, "%s", path);
		safetensors_free(out);
	}
	return status;
}

void safetensors_free(struct safetensors *st)
{
	for (size_t i = 0; i < st->num_tensors; i++)
		free(st->tensors[i].name);
	free(st->tensors);
	memset(st, 0, sizeof(*st));
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st,
						  const char *name)
{
	for (size_t i = 0; i < st->num_tensors; i++)
		if (!strcmp(st->tensors[i].name, name))
			return &st->tensors[i];
	return NULL;
}

enum engram_status safetensors_factor(const char *path,
				      const struct safetensors_tensor *tensor,
				      float *out, struct engram_error *err)
{
	const bool wide = !strcmp(tensor->dtype, "F32");
	struct engram_segment_source identity;
	enum engram_status status;
	uint8_t le[4] = {0};
	uint32_t bits;
	int fd;

	status = identity_open(path, &fd, &identity, err);
	if (status)
		return status;
	status = read_exactly(fd, path, le, wide ? 4 : 2, (off_t)tensor->offset,
			      err);
	close(fd);
	if (status) {
		engram_error_path(err, "%s", path);
		return status;
	}
	bits = (uint32_t)le[0] | (uint32_t)le[1] << 8 | (uint32_t)le[2] << 16 |
	       (uint32_t)le[3] << 24;
	if (!wide)
		bits <<= 16;
	memcpy(out, &bits, sizeof(*out));
	return ENGRAM_OK;
}
