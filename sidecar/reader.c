/* SPDX-License-Identifier: Apache-2.0 */
#include "reader.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* A file that gives less than one unit again and again has a fault. */
#define STALLS_MAX 16

static enum engram_status engine_failed(const char *what, int result,
					struct engram_error *err)
{
	enum engram_status status = engram_error_sys(err, -result, "%s", what);

	engram_error_fix(err, "set loader.engine to \"preadv\"");
	return status;
}

static enum engram_status read_failed(const struct reader_request *request,
				      int result, struct engram_error *err)
{
	char text[128];

	engram_error_set(err, ENGRAM_EIO,
			 "%s: read of %" PRIu32 " bytes at %" PRIu64 ": %s",
			 request->source->path, request->bytes - request->done,
			 request->offset + request->done,
			 strerror_r(-result, text, sizeof(text)));
	if (err)
		err->sys_errno = -result;
	engram_error_fix(err, "check the drive (see the kernel's log) and the "
			      "file, then load again");
	engram_error_path(err, "%s", request->source->path);
	return ENGRAM_EIO;
}

static enum engram_status submit(struct reader *reader,
				 struct reader_request *request,
				 struct engram_error *err)
{
	int r = reader->ops->submit(reader, request);

	if (r)
		return engine_failed("queue a read", r, err);
	reader->in_flight++;
	request->pending = true;
	return ENGRAM_OK;
}

enum engram_status reader_start(struct reader *reader,
				struct reader_request *request,
				struct engram_error *err)
{
	request->done = 0;
	request->stalls = 0;
	return submit(reader, request, err);
}

/* Less came than is needed. */
static enum engram_status go_on(struct reader *reader,
				struct reader_request *request, uint32_t before,
				struct engram_error *err)
{
	const struct source *source = request->source;
	const uint64_t end = request->offset + request->done;
	struct stat st;

	/* Direct reads begin at whole units only. */
	request->done -= request->done % source->align;
	if (request->done > before) {
		request->stalls = 0;
		return submit(reader, request, err);
	}
	if (fstat(atomic_load(&source->fd), &st) == 0 &&
	    (uint64_t)st.st_size < request->offset + request->needed)
		return source_shrank(source, end, err);
	if (++request->stalls > STALLS_MAX)
		return read_failed(request, -EIO, err);
	return submit(reader, request, err);
}

static enum engram_status complete(struct reader *reader,
				   struct reader_request *request, int result,
				   struct engram_error *err)
{
	const uint32_t before = request->done;
	enum engram_status status;

	request->pending = false;
	if (result == -EINTR || result == -EAGAIN)
		return submit(reader, request, err);
	if (result == -EINVAL && request->source->direct_fd >= 0 &&
	    (atomic_load(&request->source->direct) || !request->stalls)) {
		/* Once more after another thread has changed over. */
		request->stalls++;
		status = source_go_buffered(request->source, err);
		return status ? status : submit(reader, request, err);
	}
	if (result < 0)
		return read_failed(request, result, err);
	if (result == 0)
		return source_shrank(request->source,
				     request->offset + request->done, err);
	request->done += (uint32_t)result;
	if (request->done >= request->needed)
		return ENGRAM_OK;
	return go_on(reader, request, before, err);
}

int reader_wait(struct reader *reader, struct reader_request **request,
		int *result)
{
	*request = NULL;
	return reader->ops->next(reader, request, result);
}

enum engram_status reader_act(struct reader *reader, int waited,
			      struct reader_request *request, int result,
			      struct engram_error *err)
{
	if (waited < 0)
		return engine_failed("wait for reads", waited, err);
	if (waited == 0)
		return ENGRAM_OK;
	reader->in_flight--;
	return complete(reader, request, result, err);
}

enum engram_status reader_step(struct reader *reader, struct engram_error *err)
{
	struct reader_request *request;
	int result = 0;
	const int waited = reader_wait(reader, &request, &result);

	return reader_act(reader, waited, request, result, err);
}

bool reader_close(struct reader *reader)
{
	bool drained = true;
	int r;

	if (!reader)
		return true;
	while (reader->in_flight && drained) {
		r = reader->ops->drain(reader);
		if (r > 0)
			reader->in_flight--;
		drained = r >= 0;
	}
	reader->ops->destroy(reader);
	return drained;
}
