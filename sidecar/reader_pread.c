/* SPDX-License-Identifier: Apache-2.0 */
/* Reads by preadv, one after the other, when their result is asked for. */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "reader.h"

struct pread_reader {
	struct reader reader;
	unsigned int depth, first;
	struct reader_request *queue[]; /* a ring of in_flight requests */
};

static int pread_submit(struct reader *reader, struct reader_request *request)
{
	struct pread_reader *p = (struct pread_reader *)reader;

	if (reader->in_flight == p->depth)
		return -EBUSY;
	p->queue[(p->first + reader->in_flight) % p->depth] = request;
	return 0;
}

static int pread_next(struct reader *reader, struct reader_request **request,
		      int *result)
{
	struct pread_reader *p = (struct pread_reader *)reader;
	struct reader_request *r = p->queue[p->first];
	struct iovec iov = {r->buffer + r->done, r->bytes - r->done};
	ssize_t n = preadv(atomic_load(&r->source->fd), &iov, 1,
			   (off_t)(r->offset + r->done));

	*result = n < 0 ? -errno : (int)n;
	*request = r;
	p->first = (p->first + 1) % p->depth;
	return 1;
}

/* What was queued was not begun. */
static int pread_drain(struct reader *reader)
{
	(void)reader;
	return 1;
}

static void pread_destroy(struct reader *reader)
{
	free(reader);
}

static const struct reader_ops pread_ops = {.submit = pread_submit,
					    .next = pread_next,
					    .drain = pread_drain,
					    .destroy = pread_destroy};

int reader_pread_open(unsigned int depth, struct reader **out)
{
	struct pread_reader *p;

	p = calloc(1, sizeof(*p) + depth * sizeof(struct reader_request *));
	if (!p)
		return -ENOMEM;
	p->reader.ops = &pread_ops;
	p->reader.engine = LOADER_PREADV;
	p->depth = depth;
	*out = &p->reader;
	return 0;
}
