/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_retry(const char *path, int flags)
{
	int fd;

	do
		fd = open(path, flags | O_RDONLY | O_CLOEXEC);
	while (fd < 0 && errno == EINTR);
	return fd;
}

static enum engram_status open_failed(const struct source *source,
				      int sys_errno, struct engram_error *err)
{
	enum engram_status status =
		engram_error_sys(err, sys_errno, "open %s", source->path);

	engram_error_fix(err, "make the file readable for engramd");
	engram_error_path(err, "%s", source->path);
	return status;
}

static enum engram_status no_direct(const struct source *source,
				    struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "%s: its file system has no direct reads",
			 source->path);
	engram_error_fix(err, "set loader.direct to \"auto\" or \"off\"");
	engram_error_path(err, "%s", source->path);
	return ENGRAM_EUNSUPPORTED;
}

/* What the kernel demands of direct reads, 0 where it knows of none. */
static uint32_t direct_align(int fd)
{
	uint32_t align = SOURCE_ALIGN;
#ifdef STATX_DIOALIGN
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 &&
	    (st.stx_mask & STATX_DIOALIGN)) {
		if (!st.stx_dio_offset_align)
			return 0;
		while (align < st.stx_dio_offset_align ||
		       align < st.stx_dio_mem_align)
			align *= 2;
	}
#else
	(void)fd;
#endif
	return align;
}

static enum engram_status open_buffered(struct source *source,
					struct engram_error *err)
{
	source->buffered_fd = open_retry(source->path, 0);
	if (source->buffered_fd < 0)
		return open_failed(source, errno, err);
	/* Advice: nothing depends on it. */
	(void)posix_fadvise(source->buffered_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	atomic_store(&source->direct, false);
	atomic_store(&source->fd, source->buffered_fd);
	return ENGRAM_OK;
}

static enum engram_status open_direct(struct source *source,
				      struct engram_error *err)
{
	source->direct_fd = open_retry(source->path, O_DIRECT);
	if (source->direct_fd < 0)
		return errno == EINVAL ? ENGRAM_OK
				       : open_failed(source, errno, err);
	source->align = direct_align(source->direct_fd);
	if (!source->align) {
		close(source->direct_fd);
		source->direct_fd = -1;
		return ENGRAM_OK;
	}
	atomic_store(&source->direct, true);
	atomic_store(&source->fd, source->direct_fd);
	return ENGRAM_OK;
}

static enum engram_status check_size(struct source *source,
				     struct engram_error *err)
{
	struct stat st;
	enum engram_status status;

	if (fstat(atomic_load(&source->fd), &st)) {
		status = engram_error_sys(err, errno, "fstat %s", source->path);
		engram_error_fix(err, "check the file system it lies on");
		engram_error_path(err, "%s", source->path);
		return status;
	}
	source->device = st.st_dev;
	if ((uint64_t)st.st_size == source->size)
		return ENGRAM_OK;
	return source_shrank(source, (uint64_t)st.st_size, err);
}

static enum engram_status source_open(struct source *source,
				      const struct checkpoint_file *file,
				      enum loader_direct wish,
				      struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	source->path = file->path;
	source->size = file->identity.size;
	source->wish = wish;
	source->direct_fd = source->buffered_fd = -1;
	atomic_init(&source->fd, -1);
	atomic_init(&source->direct, false);
	pthread_mutex_init(&source->lock, NULL);
	if (wish != LOADER_DIRECT_OFF)
		status = open_direct(source, err);
	if (status)
		return status;
	if (source->direct_fd < 0) {
		if (wish == LOADER_DIRECT_ON)
			return no_direct(source, err);
		source->align = SOURCE_ALIGN;
		status = open_buffered(source, err);
	}
	return status ? status : check_size(source, err);
}

static enum engram_status add_file(struct sources *sources,
				   const struct checkpoint *checkpoint,
				   uint32_t file, enum loader_direct wish,
				   struct engram_error *err)
{
	struct source *source = &sources->files[sources->count];

	if (sources_of(sources, file))
		return ENGRAM_OK;
	sources->count++;
	source->file = file;
	return source_open(source, &checkpoint->files[file], wish, err);
}

static enum engram_status add_tensor(struct sources *sources,
				     const struct checkpoint *checkpoint,
				     const struct checkpoint_tensor *tensor,
				     enum loader_direct wish,
				     struct engram_error *err)
{
	enum engram_status status =
		add_file(sources, checkpoint, tensor->file, wish, err);
	uint32_t i;

	for (i = 0; !status && i < tensor->num_parts; i++)
		status = add_file(sources, checkpoint, tensor->parts[i].file,
				  wish, err);
	return status;
}

static enum engram_status add_layer(struct sources *sources,
				    const struct checkpoint *checkpoint,
				    const struct checkpoint_layer *layer,
				    bool scales, enum loader_direct wish,
				    struct engram_error *err)
{
	enum engram_status status =
		add_tensor(sources, checkpoint, &layer->weight, wish, err);

	if (!status && scales)
		status = add_tensor(sources, checkpoint, &layer->scale, wish,
				    err);
	if (status)
		engram_error_context(err, "layer %" PRId32, layer->layer_id);
	return status;
}

enum engram_status sources_open(struct sources *sources,
				const struct checkpoint *checkpoint,
				const struct checkpoint_layer *const *layers,
				uint32_t num_layers, bool scales,
				enum loader_direct wish,
				struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	size_t most = 1;
	uint32_t i;

	for (i = 0; i < num_layers; i++)
		most += (size_t)layers[i]->weight.num_parts +
			layers[i]->scale.num_parts + 2;
	sources->count = 0;
	sources->files = calloc(most, sizeof(*sources->files));
	if (!sources->files) {
		status = engram_error_set(err, ENGRAM_ENOMEM,
					  "no memory to open a checkpoint");
		engram_error_fix(err, "free some memory");
		return status;
	}
	for (i = 0; i < num_layers && !status; i++)
		status = add_layer(sources, checkpoint, layers[i], scales, wish,
				   err);
	if (status)
		sources_close(sources);
	return status;
}

struct source *sources_of(const struct sources *sources, uint32_t file)
{
	unsigned int i;

	for (i = 0; i < sources->count; i++)
		if (sources->files[i].file == file)
			return &sources->files[i];
	return NULL;
}

void sources_close(struct sources *sources)
{
	unsigned int i;

	for (i = 0; i < sources->count; i++) {
		struct source *source = &sources->files[i];

		if (source->direct_fd >= 0)
			close(source->direct_fd);
		if (source->buffered_fd >= 0)
			close(source->buffered_fd);
		pthread_mutex_destroy(&source->lock);
	}
	free(sources->files);
	sources->files = NULL;
	sources->count = 0;
}

bool sources_direct(const struct sources *sources)
{
	unsigned int i;

	for (i = 0; i < sources->count; i++)
		if (!atomic_load(&sources->files[i].direct))
			return false;
	return true;
}

uint32_t sources_align(const struct sources *sources)
{
	uint32_t align = SOURCE_ALIGN;
	unsigned int i;

	for (i = 0; i < sources->count; i++)
		if (sources->files[i].align > align)
			align = sources->files[i].align;
	return align;
}

enum engram_status source_go_buffered(struct source *source,
				      struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	if (source->wish == LOADER_DIRECT_ON)
		return no_direct(source, err);
	pthread_mutex_lock(&source->lock);
	if (atomic_load(&source->direct))
		status = open_buffered(source, err);
	pthread_mutex_unlock(&source->lock);
	return status;
}

void source_drop(const struct source *source, uint64_t offset, uint64_t bytes)
{
	/* Advice: nothing depends on it. */
	if (!atomic_load(&source->direct))
		(void)posix_fadvise(atomic_load(&source->fd), (off_t)offset,
				    (off_t)bytes, POSIX_FADV_DONTNEED);
}

enum engram_status source_shrank(const struct source *source, uint64_t offset,
				 struct engram_error *err)
{
	struct stat st;
	uint64_t now = 0;

	if (fstat(atomic_load(&source->fd), &st) == 0)
		now = (uint64_t)st.st_size;
	engram_error_set(err, ENGRAM_ESOURCECHANGED,
			 "%s: ends at offset %" PRIu64 ": it has %" PRIu64
			 " bytes, and had %" PRIu64 " when it was opened",
			 source->path, offset, now, source->size);
	engram_error_fix(err, "load again once nothing writes to the "
			      "checkpoint any more");
	engram_error_figures(err, source->size, now);
	engram_error_path(err, "%s", source->path);
	return ENGRAM_ESOURCECHANGED;
}
