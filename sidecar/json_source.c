/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engram_wire.h"
#include "json.h"
#include "json_memory.h"

static enum engram_status too_deep(const char *name, enum engram_status status,
				   struct engram_error *err)
{
	return engram_error_set(
		err, status, "%s%smore than %d nested arrays and objects",
		name ? name : "", name ? ": " : "", ENGRAM_DEPTH_MAX);
}

static enum engram_status not_json(const char *name, enum engram_status status,
				   const json_error_t *error,
				   struct engram_error *err)
{
	if (json_memory_failed())
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to parse JSON");
	if (!name)
		return engram_error_set(err, status, "not JSON: %s at byte %d",
					error->text, error->position);
	engram_error_set(err, status, "%s:%d:%d: %s", name, error->line,
			 error->column, error->text);
	engram_error_fix(err, "%s",
			 status == ENGRAM_ECONFIG
				 ? "write JSON in UTF-8, without comments, "
				   "trailing commas or a key twice"
				 : "download the file again");
	return status;
}

static enum engram_status parse(struct json_source *src, const char *name,
				const char *text, size_t len, size_t flags,
				enum engram_status status,
				struct engram_error *err)
{
	json_error_t error;

	memset(src, 0, sizeof(*src));
	json_memory_begin();
	/* Before parsing, so that no text can make the parser recurse. */
	if (engram_wire_json_depth(text, len) > ENGRAM_DEPTH_MAX)
		status = too_deep(name, status, err);
	else if (!(src->root =
			   json_loadb(text, len, JSON_REJECT_DUPLICATES | flags,
				      &error)) ||
		 json_memory_failed())
		status = not_json(name, status, &error, err);
	else
		status = ENGRAM_OK;
	if (status) {
		json_decref(src->root);
		src->root = NULL;
		if (name)
			engram_error_path(err, "%s", name);
		return status;
	}
	src->name = name ? strdup(name) : NULL;
	src->text = malloc(len + 1);
	if ((name && !src->name) || !src->text) {
		json_source_free(src);
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for %zu bytes of JSON", len);
	}
	/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
	memcpy(src->text, text, len);
	src->text[len] = '\0';
	src->len = len;
	return ENGRAM_OK;
}

enum engram_status json_source_parse(struct json_source *src, const char *name,
				     const char *text, size_t len,
				     enum engram_status status,
				     struct engram_error *err)
{
	return parse(src, name, text, len, 0, status, err);
}

/* The whole file; *text is malloc'd. */
static enum engram_status read_text(int fd, const char *file, size_t max_bytes,
				    enum engram_status status, char **text,
				    size_t *len, struct engram_error *err)
{
	struct stat st;
	size_t done = 0;

	if (fstat(fd, &st))
		return engram_error_sys(err, errno, "stat %s", file);
	if (!S_ISREG(st.st_mode))
		return engram_error_set(err, status, "%s: not a regular file",
					file);
	if ((uint64_t)st.st_size > max_bytes)
		return engram_error_set(err, status,
					"%s: %" PRIu64 " bytes, at most %zu",
					file, (uint64_t)st.st_size, max_bytes);
	*text = malloc((size_t)st.st_size + 1);
	if (!*text)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory for %s",
					file);
	while (done < (size_t)st.st_size) {
		ssize_t n = read(fd, *text + done, (size_t)st.st_size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			free(*text);
			return engram_error_sys(err, errno, "read %s", file);
		}
		if (!n) /* it shrank; what is there decides */
			break;
		done += (size_t)n;
	}
	*len = done;
	return ENGRAM_OK;
}

static enum engram_status read_file(struct json_source *src, const char *file,
				    size_t max_bytes, size_t flags,
				    enum engram_status status,
				    struct engram_error *err)
{
	enum engram_status result;
	char *text = NULL;
	size_t len = 0;
	int fd;

	memset(src, 0, sizeof(*src));
	/* NONBLOCK, so that a FIFO in its place does not hang us. */
	fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		result = engram_error_sys(err, errno, "open %s", file);
		engram_error_path(err, "%s", file);
		engram_error_fix(err, "name a file that is there and may be "
				      "read");
		return result;
	}
	result = read_text(fd, file, max_bytes, status, &text, &len, err);
	close(fd);
	if (result) {
		engram_error_path(err, "%s", file);
		return result;
	}
	result = parse(src, file, text, len, flags, status, err);
	free(text);
	return result;
}

enum engram_status json_source_read(struct json_source *src, const char *file,
				    size_t max_bytes, enum engram_status status,
				    struct engram_error *err)
{
	return read_file(src, file, max_bytes, 0, status, err);
}

enum engram_status json_source_read_reals(struct json_source *src,
					  const char *file, size_t max_bytes,
					  enum engram_status status,
					  struct engram_error *err)
{
	return read_file(src, file, max_bytes, JSON_DECODE_INT_AS_REAL, status,
			 err);
}

void json_source_free(struct json_source *src)
{
	json_decref(src->root);
	free(src->name);
	free(src->text);
	memset(src, 0, sizeof(*src));
}
