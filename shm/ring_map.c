/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "engram_ring.h"

#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC 0x01021994
#endif

#define PAGE	     UINT64_C(4096)
#define HEADER_BYTES PAGE
#define SEALS	     (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* Pages put in place by one call, so that a signal need not wait for all. */
#define POPULATE_BYTES (UINT64_C(64) << 20)

_Static_assert(offsetof(struct engram_ring_header, asleep) == 64 &&
		       offsetof(struct engram_ring_header, waiting) == 128 &&
		       offsetof(struct engram_ring_header, counts) == 192 &&
		       offsetof(struct engram_ring_header, choices) == 256 &&
		       sizeof(struct engram_ring_header) <= HEADER_BYTES,
	       "lines of their own");
_Static_assert(sizeof(struct engram_ring_words) == ENGRAM_RING_LINE &&
		       sizeof(struct engram_ring_answer) == ENGRAM_RING_LINE &&
		       sizeof(struct engram_ring_flag) == ENGRAM_RING_LINE,
	       "lines of their own");
_Static_assert(sizeof(struct engram_ring_slot) ==
		       (2 + ENGRAM_RING_FLAGS) * ENGRAM_RING_LINE,
	       "the layout is ABI");

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

enum engram_status engram_ring_plan(const struct engram_ring_shape *shape,
				    struct engram_ring *out,
				    struct engram_error *err)
{
	struct engram_ring r = {.shape = *shape};

	memset(out, 0, sizeof(*out));
	if (!shape->slots || shape->slots > ENGRAM_RING_SLOTS)
		return engram_error_set(err, ENGRAM_EINVAL,
					"a ring of %" PRIu32 " slots: 1 to %u "
					"are possible",
					shape->slots, ENGRAM_RING_SLOTS);
	if (!shape->max_rows || shape->max_rows > ENGRAM_RING_ROWS_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"a ring for %" PRIu32 " rows: 1 to "
					"%" PRIu32 " are possible",
					shape->max_rows, ENGRAM_RING_ROWS_MAX);
	if (!shape->row_bytes || shape->row_bytes > ENGRAM_RING_ROW_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"a ring for rows of %" PRIu32 " bytes: "
					"1 to %" PRIu32 " are possible",
					shape->row_bytes, ENGRAM_RING_ROW_MAX);
	r.row_stride = (shape->row_bytes + 7) / 8 * 8;
	r.slots_offset = HEADER_BYTES;
	r.ids_bytes = pages(shape->max_rows * sizeof(uint64_t));
	r.ids_offset = r.slots_offset +
		       pages(shape->slots * sizeof(struct engram_ring_slot));
	/* threads copy eight rows at a time */
	r.rows_bytes = pages((uint64_t)(shape->max_rows + 7) * r.row_stride);
	r.rows_offset = r.ids_offset + shape->slots * r.ids_bytes;
	r.bytes = r.rows_offset + shape->slots * r.rows_bytes;
	*out = r;
	return ENGRAM_OK;
}

static enum engram_status map(int fd, struct engram_ring *ring,
			      struct engram_error *err)
{
	void *base = mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			  fd, 0);

	if (base == MAP_FAILED)
		return engram_error_sys(err, errno,
					"mapping a ring of %" PRIu64 " bytes",
					ring->bytes);
	ring->base = base;
	/* A forked child has no business here. */
	madvise(base, ring->bytes, MADV_DONTFORK);
	return ENGRAM_OK;
}

/* So that neither side, nor a device, waits for a page later. */
static enum engram_status populate(const struct engram_ring *ring,
				   struct engram_error *err)
{
	uint64_t at, left;

	/* Fewer translations where the kernel has huge pages for it. */
	madvise(ring->base, ring->bytes, MADV_HUGEPAGE);
	for (at = 0; at < ring->bytes; at += POPULATE_BYTES) {
		left = ring->bytes - at;
		while (madvise(ring->base + at,
			       left < POPULATE_BYTES ? left : POPULATE_BYTES,
			       MADV_POPULATE_WRITE)) {
			if (errno == EINVAL) { /* before Linux 5.14 */
				memset(ring->base, 0, ring->bytes);
				return ENGRAM_OK;
			}
			if (errno != EINTR && errno != EAGAIN)
				return engram_error_sys(
					err, errno == EFAULT ? ENOMEM : errno,
					"memory for a ring of %" PRIu64
					" bytes",
					ring->bytes);
		}
	}
	return ENGRAM_OK;
}

static enum engram_status make(int fd, struct engram_ring *ring,
			       struct engram_error *err)
{
	struct engram_ring_header *header;
	enum engram_status status;

	if (ftruncate(fd, (off_t)ring->bytes))
		return engram_error_sys(err, errno,
					"sizing a ring of %" PRIu64 " bytes",
					ring->bytes);
	if (fcntl(fd, F_ADD_SEALS, SEALS))
		return engram_error_sys(err, errno, "sealing a ring");
	status = map(fd, ring, err);
	if (!status)
		status = populate(ring, err);
	if (status)
		return status;
	header = engram_ring_header(ring);
	header->slots = ring->shape.slots;
	header->max_rows = ring->shape.max_rows;
	header->row_bytes = ring->shape.row_bytes;
	header->version = ENGRAM_RING_VERSION;
	header->magic = ENGRAM_RING_MAGIC;
	return ENGRAM_OK;
}

enum engram_status engram_ring_create(const struct engram_ring_shape *shape,
				      struct engram_ring *out, int *fd,
				      struct engram_error *err)
{
	enum engram_status status = engram_ring_plan(shape, out, err);

	*fd = -1;
	if (status)
		return status;
	*fd = memfd_create("engram-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0) {
		status = engram_error_sys(err, errno, "memfd_create");
		memset(out, 0, sizeof(*out));
		return status;
	}
	status = make(*fd, out, err);
	if (!status)
		return ENGRAM_OK;
	engram_ring_unmap(out);
	close(*fd);
	*fd = -1;
	return status;
}

/*
 * Not a file that could be cut short under engramd (SIGBUS), and none whose
 * pages could be missing: a memory file of the kernel's own tmpfs has no limit
 * but memory itself.
 */
static enum engram_status check_file(int fd, uint64_t *bytes,
				     struct engram_error *err)
{
	struct statfs fs;
	struct stat st;
	int seals;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return engram_error_sys(err, errno, "looking at a ring");
	seals = S_ISREG(st.st_mode) ? fcntl(fd, F_GET_SEALS) : -1;
	if (seals < 0 || (seals & SEALS) != SEALS ||
	    (unsigned long)fs.f_type != TMPFS_MAGIC ||
	    (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "the ring is not a memory file of fixed size");
		engram_error_fix(err, "make it with memfd_create, without "
				      "huge pages, and seal it with "
				      "F_SEAL_SHRINK, F_SEAL_GROW and "
				      "F_SEAL_SEAL");
		return ENGRAM_EINVAL;
	}
	*bytes = (uint64_t)st.st_size;
	return ENGRAM_OK;
}

enum engram_status engram_ring_map(int fd, struct engram_ring *out,
				   struct engram_error *err)
{
	struct engram_ring_header header;
	struct engram_ring_shape shape;
	enum engram_status status;
	uint64_t bytes = 0;
	ssize_t n;

	memset(out, 0, sizeof(*out));
	status = check_file(fd, &bytes, err);
	if (status)
		return status;
	n = pread(fd, &header, sizeof(header), 0);
	if (n < 0)
		return engram_error_sys(err, errno, "reading a ring's header");
	if ((size_t)n < sizeof(header) || header.magic != ENGRAM_RING_MAGIC)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"the ring has no header");
	if (header.version != ENGRAM_RING_VERSION) {
		engram_error_set(err, ENGRAM_EVERSION,
				 "the ring is of version %" PRIu32
				 ", not %" PRIu32,
				 header.version, ENGRAM_RING_VERSION);
		engram_error_fix(err, "install engramd and libengram of the "
				      "same release");
		return ENGRAM_EVERSION;
	}
	shape = (struct engram_ring_shape){header.slots, header.max_rows,
					   header.row_bytes};
	status = engram_ring_plan(&shape, out, err);
	if (!status && out->bytes != bytes) {
		status = engram_error_set(err, ENGRAM_EDAMAGED,
					  "the ring has %" PRIu64 " bytes, by "
					  "its header %" PRIu64,
					  bytes, out->bytes);
	}
	if (!status)
		status = map(fd, out, err);
	if (status)
		memset(out, 0, sizeof(*out));
	return status;
}

void engram_ring_unmap(struct engram_ring *ring)
{
	if (ring->base)
		munmap(ring->base, ring->bytes);
	memset(ring, 0, sizeof(*ring));
}
