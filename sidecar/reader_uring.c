/* SPDX-License-Identifier: Apache-2.0 */
/* Reads by io_uring, into registered buffers where the kernel takes them. */
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "reader.h"

/* Between looks at the stop flag. */
#define WAIT_NS 100000000

struct uring_reader {
	struct reader reader;
	struct io_uring ring;
};

/*
 * Rings that are open.  liburing maps and unmaps them by system calls of its
 * own, which a build with SANITIZE=thread does not see: to it, a ring at the
 * address where another thread's was is one piece of memory that two threads
 * write to.  Counting them orders the end of one before the start of the next.
 */
static atomic_uint open_rings;

static int uring_submit(struct reader *reader, struct reader_request *request)
{
	struct uring_reader *u = (struct uring_reader *)reader;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	const int fd = atomic_load(&request->source->fd);
	uint8_t *buffer = request->buffer + request->done;
	const uint32_t bytes = request->bytes - request->done;
	const uint64_t offset = request->offset + request->done;

	if (!sqe)
		return -EBUSY;
	if (reader->registered)
		io_uring_prep_read_fixed(sqe, fd, buffer, bytes, offset, 0);
	else
		io_uring_prep_read(sqe, fd, buffer, bytes, offset);
	io_uring_sqe_set_data(sqe, request);
	return 0;
}

/* Also hands what was queued to the kernel. */
static int uring_next(struct reader *reader, struct reader_request **request,
		      int *result)
{
	struct uring_reader *u = (struct uring_reader *)reader;
	struct __kernel_timespec wait = {.tv_nsec = WAIT_NS};
	struct io_uring_cqe *cqe = NULL;
	int r;

	r = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &wait, NULL);
	if (!cqe)
		return r >= 0 || r == -ETIME || r == -EINTR || r == -EAGAIN ||
				       r == -EBUSY
			       ? 0
			       : r;
	*request = io_uring_cqe_get_data(cqe);
	*result = cqe->res;
	io_uring_cqe_seen(&u->ring, cqe);
	return 1;
}

static int uring_drain(struct reader *reader)
{
	struct reader_request *request;
	int result;

	return uring_next(reader, &request, &result);
}

static void uring_destroy(struct reader *reader)
{
	struct uring_reader *u = (struct uring_reader *)reader;

	atomic_fetch_sub(&open_rings, 1); /* before others can be mapped here */
	io_uring_queue_exit(&u->ring);
	free(u);
}

static const struct reader_ops uring_ops = {.submit = uring_submit,
					    .next = uring_next,
					    .drain = uring_drain,
					    .destroy = uring_destroy};

/* Flags that older kernels do not know are left out there. */
static int ring_init(struct io_uring *ring, unsigned int entries)
{
	int r = io_uring_queue_init(entries, ring,
				    IORING_SETUP_SINGLE_ISSUER |
					    IORING_SETUP_DEFER_TASKRUN);

	return r == -EINVAL ? io_uring_queue_init(entries, ring, 0) : r;
}

int reader_uring_probe(void)
{
	struct io_uring ring;
	int r = ring_init(&ring, 1);

	if (!r)
		io_uring_queue_exit(&ring);
	return r;
}

int reader_uring_open(unsigned int depth, void *arena, size_t arena_bytes,
		      struct reader **out)
{
	struct uring_reader *u = calloc(1, sizeof(*u));
	struct iovec iov = {arena, arena_bytes};
	int r;

	if (!u)
		return -ENOMEM;
	/* One more: old kernels wait with a request of their own. */
	r = ring_init(&u->ring, depth + 1);
	if (r) {
		free(u);
		return r;
	}
	atomic_fetch_add(&open_rings, 1);
	u->reader.ops = &uring_ops;
	u->reader.engine = LOADER_IO_URING;
	/* Refused above RLIMIT_MEMLOCK; reads work all the same. */
	u->reader.registered = !io_uring_register_buffers(&u->ring, &iov, 1);
	*out = &u->reader;
	return 0;
}
