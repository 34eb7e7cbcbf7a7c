/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokmap_file.h"

#define FILE_BYTES_MAX (UINT64_C(1) << 30)
#define NPY_MAGIC      "\x93NUMPY"
#define NPY_MAGIC_LEN  6
#define NPY_HEADER_MAX 4096

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM,
				"no memory for a token map");
}

static enum engram_status invalid(const char *file, const char *what,
				  struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EINVAL, "%s: %s", file, what);
	engram_error_path(err, "%s", file);
	engram_error_fix(err, "give a JSON array of numbers, {\"token_map\": "
			      "[...]}, or a .npy of int32 or int64 with one "
			      "dimension");
	return ENGRAM_EINVAL;
}

/* ---- reading ---- */

static enum engram_status fail_sys(const char *what, const char *file,
				   struct engram_error *err)
{
	enum engram_status status =
		engram_error_sys(err, errno, "%s %s", what, file);

	engram_error_path(err, "%s", file);
	return status;
}

static enum engram_status slurp(FILE *f, const char *file, char **text,
				size_t *len, struct engram_error *err)
{
	struct stat st;

	if (fstat(fileno(f), &st))
		return fail_sys("stat", file, err);
	if (!S_ISREG(st.st_mode))
		return invalid(file, "not a regular file", err);
	if ((uint64_t)st.st_size > FILE_BYTES_MAX)
		return invalid(file, "too large for a token map", err);
	*len = (size_t)st.st_size;
	*text = malloc(*len + 1);
	if (!*text)
		return no_memory(err);
	if (fread(*text, 1, *len, f) == *len)
		return ENGRAM_OK;
	/* What is cut while it is read sets no errno. */
	errno = ferror(f) ? errno : EIO;
	free(*text);
	*text = NULL;
	return fail_sys("read", file, err);
}

static enum engram_status take_array(const json_t *array, const char *file,
				     int64_t **out, uint64_t *len,
				     struct engram_error *err)
{
	const json_t *value;
	char what[64];
	size_t i;

	*len = json_array_size(array);
	*out = malloc((*len + 1) * sizeof(**out));
	if (!*out)
		return no_memory(err);
	json_array_foreach(array, i, value)
	{
		if (!json_is_integer(value)) {
			free(*out);
			*out = NULL;
			snprintf(what, sizeof(what),
				 "entry %zu is not an integer", i);
			return invalid(file, what, err);
		}
		(*out)[i] = json_integer_value(value);
	}
	return ENGRAM_OK;
}

static enum engram_status read_json(const char *file, const char *text,
				    size_t text_len, int64_t **out,
				    uint64_t *len, struct engram_error *err)
{
	json_error_t fault;
	json_t *root =
		json_loadb(text, text_len, JSON_REJECT_DUPLICATES, &fault);
	const json_t *array = root;
	enum engram_status status;
	char what[sizeof(fault.text) + 64];

	if (!root) {
		snprintf(what, sizeof(what), "line %d: %s", fault.line,
			 fault.text);
		return invalid(file, what, err);
	}
	if (json_is_object(root))
		array = json_object_get(root, "token_map");
	if (json_is_array(array))
		status = take_array(array, file, out, len, err);
	else
		status = invalid(file, "no array, and no \"token_map\"", err);
	json_decref(root);
	return status;
}

/* What follows `key` and a colon in the header, a Python literal of a dict;
 * NULL if it is not there. */
static const char *npy_value(const char *header, const char *key)
{
	const char *at = strstr(header, key);

	if (!at)
		return NULL;
	at += strlen(key);
	at += strspn(at, " ");
	if (*at != ':')
		return NULL;
	at++;
	return at + strspn(at, " ");
}

/* The bytes of an element and how many there are; 0 if it is another kind. */
static int npy_kind(const char *header, unsigned int *width, uint64_t *count)
{
	const char *descr = npy_value(header, "'descr'");
	const char *shape = npy_value(header, "'shape'");
	char *end;

	if (!descr || !shape)
		return 0;
	if (!strncmp(descr, "'<i4'", 5))
		*width = 4;
	else if (!strncmp(descr, "'<i8'", 5))
		*width = 8;
	else
		return 0;
	if (*shape != '(' || shape[1] < '0' || shape[1] > '9')
		return 0;
	errno = 0;
	*count = strtoull(shape + 1, &end, 10);
	end += strspn(end, " ");
	if (errno || *end++ != ',')
		return 0;
	end += strspn(end, " ");
	return *end == ')';
}

static uint64_t little_endian(const unsigned char *at, unsigned int width)
{
	uint64_t value = 0;

	while (width--)
		value = value << 8 | at[width];
	return value;
}

/* Where the elements begin; 0 if the header is none.  *header is a copy. */
static size_t npy_header(const unsigned char *data, size_t len,
			 char header[NPY_HEADER_MAX + 1])
{
	const unsigned int major = len > NPY_MAGIC_LEN ? data[6] : 0;
	const unsigned int width = major == 1 ? 2 : 4;
	const size_t begin = NPY_MAGIC_LEN + 2 + width;
	uint64_t bytes;

	if (major < 1 || major > 3 || len < begin)
		return 0;
	bytes = little_endian(data + NPY_MAGIC_LEN + 2, width);
	if (bytes > NPY_HEADER_MAX || bytes > len - begin)
		return 0;
	memcpy(header, data + begin, bytes);
	header[bytes] = '\0';
	return begin + bytes;
}

static enum engram_status read_npy(const char *file, const char *text,
				   size_t text_len, int64_t **out,
				   uint64_t *len, struct engram_error *err)
{
	const unsigned char *data = (const unsigned char *)text;
	char header[NPY_HEADER_MAX + 1];
	const size_t begin = npy_header(data, text_len, header);
	unsigned int width;
	uint64_t i, bits;

	if (!begin)
		return invalid(file, "its .npy header is damaged", err);
	if (!npy_kind(header, &width, len))
		return invalid(file,
			       "its elements are not int32 or int64, "
			       "little-endian, in one dimension",
			       err);
	if (*len != (text_len - begin) / width || (text_len - begin) % width)
		return invalid(file, "its length is not what its header says",
			       err);
	*out = malloc((*len + 1) * sizeof(**out));
	if (!*out)
		return no_memory(err);
	for (i = 0; i < *len; i++) {
		bits = little_endian(data + begin + i * width, width);
		(*out)[i] = width == 4 ? (int32_t)bits : (int64_t)bits;
	}
	return ENGRAM_OK;
}

enum engram_status tokmap_read(const char *file, int64_t **out, uint64_t *len,
			       struct engram_error *err)
{
	FILE *f = fopen(file, "re");
	enum engram_status status;
	char *text = NULL;
	size_t text_len = 0;

	*out = NULL;
	if (!f) {
		status = fail_sys("open", file, err);
		engram_error_fix(err, "name a file that --export wrote, or one "
				      "like it");
		return status;
	}
	status = slurp(f, file, &text, &text_len, err);
	fclose(f);
	if (status)
		return status;
	if (text_len >= NPY_MAGIC_LEN &&
	    !memcmp(text, NPY_MAGIC, NPY_MAGIC_LEN))
		status = read_npy(file, text, text_len, out, len, err);
	else
		status = read_json(file, text, text_len, out, len, err);
	free(text);
	return status;
}

/* ---- writing ---- */

static int ends_in(const char *file, const char *ending)
{
	const size_t len = strlen(file), n = strlen(ending);

	return len > n && !strcmp(file + len - n, ending);
}

int tokmap_writable_name(const char *file)
{
	return ends_in(file, ".json") || ends_in(file, ".npy");
}

/* Errors stay in the stream, and are looked at when it is closed. */
static void put_json(FILE *f, const int32_t *map, uint64_t len)
{
	uint64_t i;

	fputs("{\"token_map\": [", f);
	for (i = 0; i < len; i++)
		fprintf(f, "%s%" PRId32, i ? "," : "", map[i]);
	fputs("]}\n", f);
}

static void put_npy(FILE *f, const int32_t *map, uint64_t len)
{
	char header[119]; /* with what is before it 128, aligned to 64 */
	uint64_t i;
	uint32_t bits;
	int n;

	n = snprintf(header, sizeof(header),
		     "{'descr': '<i4', 'fortran_order': False, 'shape': "
		     "(%" PRIu64 ",), }",
		     len);
	memset(header + n, ' ', sizeof(header) - (size_t)n);
	header[117] = '\n';
	fwrite(NPY_MAGIC "\x01\0\x76\0", 1, NPY_MAGIC_LEN + 4, f);
	fwrite(header, 1, 118, f);
	for (i = 0; i < len; i++) {
		bits = (uint32_t)map[i];
		putc((int)(bits & 255), f);
		putc((int)(bits >> 8 & 255), f);
		putc((int)(bits >> 16 & 255), f);
		putc((int)(bits >> 24), f);
	}
}

/* Of a new file, as the umask says: mkstemp makes it private. */
static int set_mode(int fd)
{
	const mode_t mask = umask(0);

	umask(mask);
	return fchmod(fd, 0666 & ~mask);
}

/* 0, or -1 and errno. */
static int fill(int fd, const char *file, const int32_t *map, uint64_t len)
{
	FILE *f = fdopen(fd, "w");
	int saved;

	if (!f) {
		saved = errno;
		close(fd);
		errno = saved;
		return -1;
	}
	if (ends_in(file, ".npy"))
		put_npy(f, map, len);
	else
		put_json(f, map, len);
	if (!fflush(f) && !ferror(f) && !set_mode(fd) && !fsync(fd))
		return fclose(f);
	saved = errno;
	fclose(f);
	errno = saved;
	return -1;
}

enum engram_status tokmap_write(const char *file, const int32_t *map,
				uint64_t len, struct engram_error *err)
{
	enum engram_status status;
	char *temporary;
	int fd;

	if (asprintf(&temporary, "%s.XXXXXX", file) < 0)
		return no_memory(err);
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0) {
		status = fail_sys("create", file, err);
	} else if (fill(fd, file, map, len) || rename(temporary, file)) {
		status = fail_sys("write", file, err);
		unlink(temporary);
	} else {
		status = ENGRAM_OK;
	}
	if (status)
		engram_error_fix(err, "name a file in a directory that can be "
				      "written and has room");
	free(temporary);
	return status;
}
