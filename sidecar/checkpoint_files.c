/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "checkpoint_faults.h"
#include "checkpoint_files.h"
#include "identity.h"
#include "json.h"

#define INDEX_BYTES_MAX (256u << 20)
#define SHARDS_MAX	65536u

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM,
				"no memory to read a checkpoint");
}

enum engram_status checkpoint_add_file(struct checkpoint *c, const char *name,
				       uint32_t *index,
				       struct engram_error *err)
{
	struct checkpoint_file *files, *f;
	enum engram_status status;
	int fd;

	if (strlen(name) >= sizeof(f->identity.name))
		return engram_error_set(err, ENGRAM_ECHECKPOINT,
					"%s: a file name of %zu bytes, at "
					"most %zu",
					c->dir, strlen(name),
					sizeof(f->identity.name) - 1);
	files = realloc(c->files, (c->num_files + 1) * sizeof(*files));
	if (!files)
		return no_memory(err);
	c->files = files;
	f = &files[c->num_files];
	memset(f, 0, sizeof(*f));
	f->name = strdup(name);
	f->path = NULL;
	if (*name == '/')
		f->path = strdup(name);
	else if (asprintf(&f->path, "%s/%s", c->dir, name) < 0)
		f->path = NULL;
	if (!f->name || !f->path) {
		free(f->name);
		free(f->path);
		return no_memory(err);
	}
	memcpy(f->identity.name, name, strlen(name));
	status = identity_open(f->path, &fd, &f->identity, err);
	if (status) {
		free(f->name);
		free(f->path);
		return status;
	}
	close(fd);
	*index = c->num_files++;
	return ENGRAM_OK;
}

static enum engram_status add_shard(struct checkpoint_shards *s,
				    const char *name,
				    struct checkpoint_shard **out,
				    struct engram_error *err)
{
	struct checkpoint_shard *shards;

	for (size_t i = 0; i < s->num_shards; i++)
		if (!strcmp(s->shards[i].name, name)) {
			*out = &s->shards[i];
			return ENGRAM_OK;
		}
	if (s->num_shards == SHARDS_MAX)
		return engram_error_set(err, ENGRAM_ECHECKPOINT,
					"more than %u safetensors files",
					SHARDS_MAX);
	shards = realloc(s->shards, (s->num_shards + 1) * sizeof(*shards));
	if (!shards)
		return no_memory(err);
	s->shards = shards;
	*out = &shards[s->num_shards];
	memset(*out, 0, sizeof(**out));
	(*out)->name = strdup(name);
	if (!(*out)->name)
		return no_memory(err);
	s->num_shards++;
	return ENGRAM_OK;
}

/* Read the shard's header unless that has been done. */
static enum engram_status read_shard(struct checkpoint *c,
				     struct checkpoint_shard *shard,
				     struct engram_error *err)
{
	struct checkpoint_file *file;
	enum engram_status status;

	if (shard->read)
		return ENGRAM_OK;
	status = checkpoint_add_file(c, shard->name, &shard->file, err);
	if (status)
		return status;
	file = &c->files[shard->file];
	status = safetensors_read(file->path, &shard->header, err);
	if (status)
		return status;
	/* What was parsed is what counts, should it have changed since. */
	memcpy(shard->header.identity.name, file->identity.name,
	       sizeof(file->identity.name));
	file->identity = shard->header.identity;
	shard->read = true;
	return ENGRAM_OK;
}

static enum engram_status take_index(struct checkpoint *c,
				     const struct json_source *src,
				     struct checkpoint_shards *out,
				     struct engram_error *err)
{
	struct json_view v;
	enum engram_status status;

	json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	json_view_require(&v, "weight_map", "which file has which tensor");
	out->weight_map = json_view_object(&v, "weight_map");
	status = json_view_result(&v);
	if (status)
		return status;
	json_incref(out->weight_map);
	status =
		checkpoint_add_file(c, CHECKPOINT_INDEX, &out->index_file, err);
	if (!status)
		c->files[out->index_file].identity.header_hash =
			XXH3_64bits(src->text, src->len);
	return status;
}

int checkpoint_is_safetensors(const struct dirent *entry)
{
	static const char ending[] = ".safetensors";
	const size_t len = strlen(entry->d_name);

	return entry->d_name[0] != '.' && len > sizeof(ending) - 1 &&
	       !strcmp(entry->d_name + len - (sizeof(ending) - 1), ending);
}

/* Without an index every file is looked into, in the order of names. */
static enum engram_status scan(struct checkpoint *c,
			       struct checkpoint_shards *out,
			       struct engram_error *err)
{
	struct dirent **entries = NULL;
	const int n =
		scandir(c->dir, &entries, checkpoint_is_safetensors, alphasort);
	enum engram_status status = ENGRAM_OK;
	struct checkpoint_shard *shard;

	if (n < 0)
		return engram_error_sys(err, errno, "list %s", c->dir);
	if (!n) {
		status = engram_error_set(err, ENGRAM_ECHECKPOINT,
					  "%s: neither " CHECKPOINT_INDEX
					  " nor any .safetensors file",
					  c->dir);
		engram_error_path(err, "%s", c->dir);
		engram_error_fix(err, "download the whole checkpoint");
	}
	for (int i = 0; i < n; i++) {
		if (!status)
			status =
				add_shard(out, entries[i]->d_name, &shard, err);
		if (!status)
			status = checkpoint_fault(c, read_shard(c, shard, err),
						  err);
		free(entries[i]);
	}
	free(entries);
	return status;
}

enum engram_status checkpoint_shards_open(struct checkpoint *c,
					  struct checkpoint_shards *out,
					  struct engram_error *err)
{
	enum engram_status status;
	struct json_source src;
	char *path;

	memset(out, 0, sizeof(*out));
	if (asprintf(&path, "%s/" CHECKPOINT_INDEX, c->dir) < 0)
		return no_memory(err);
	status = json_source_read(&src, path, INDEX_BYTES_MAX,
				  ENGRAM_ECHECKPOINT, err);
	status = identity_dangling(path, status, err);
	free(path);
	if (status == ENGRAM_ENOTFOUND) {
		status = scan(c, out, err);
	} else if (!status) {
		status = take_index(c, &src, out, err);
		json_source_free(&src);
	}
	if (status)
		checkpoint_shards_free(out);
	return status;
}

void checkpoint_shards_free(struct checkpoint_shards *s)
{
	json_decref(s->weight_map);
	for (size_t i = 0; i < s->num_shards; i++) {
		free(s->shards[i].name);
		safetensors_free(&s->shards[i].header);
	}
	free(s->shards);
	memset(s, 0, sizeof(*s));
}

/* Only plain file names: an index must not reach out of its directory. */
static bool is_plain(const char *file)
{
	return *file && *file != '.' && !strchr(file, '/');
}

static enum engram_status find_by_index(
	struct checkpoint *c, struct checkpoint_shards *s, const char *name,
	const struct safetensors_tensor **tensor, uint32_t *file,
	struct engram_error *err)
{
	const json_t *value = json_object_get(s->weight_map, name);
	const char *index = c->files[s->index_file].path;
	struct checkpoint_shard *shard;
	enum engram_status status;

	if (!value)
		return ENGRAM_OK;
	if (!json_is_string(value) || !is_plain(json_string_value(value))) {
		engram_error_set(err, ENGRAM_ECHECKPOINT,
				 "%s: weight_map: \"%s\": must be the plain "
				 "name of a file in the same directory",
				 index, name);
		engram_error_path(err, "%s", index);
		return ENGRAM_ECHECKPOINT;
	}
	status = add_shard(s, json_string_value(value), &shard, err);
	if (!status)
		status = read_shard(c, shard, err);
	if (status == ENGRAM_ENOTFOUND) {
		engram_error_context(err, "tensor \"%s\"", name);
		engram_error_fix(err, "download the file that the index names");
	}
	if (status)
		return status;
	*tensor = safetensors_find(&shard->header, name);
	*file = shard->file;
	if (*tensor)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: has no tensor \"%s\", although " CHECKPOINT_INDEX
			 " says so",
			 c->files[shard->file].path, name);
	engram_error_path(err, "%s", c->files[shard->file].path);
	engram_error_fix(err, "download the file and the index again");
	return ENGRAM_ECHECKPOINT;
}

enum engram_status checkpoint_shards_find(
	struct checkpoint *c, struct checkpoint_shards *s, const char *name,
	const struct safetensors_tensor **tensor, uint32_t *file,
	struct engram_error *err)
{
	*tensor = NULL;
	if (s->weight_map)
		return find_by_index(c, s, name, tensor, file, err);
	for (size_t i = 0; i < s->num_shards; i++) {
		const struct safetensors_tensor *found =
			safetensors_find(&s->shards[i].header, name);

		if (!found)
			continue;
		if (*tensor)
			return engram_error_set(
				err, ENGRAM_ECHECKPOINT,
				"%s: tensor \"%s\" is in %s too, and there is "
				"no " CHECKPOINT_INDEX,
				c->files[s->shards[i].file].path, name,
				c->files[*file].name);
		*tensor = found;
		*file = s->shards[i].file;
	}
	return ENGRAM_OK;
}
