/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading.  Nothing of a segment is believed before it is checked: the fixed
 * part of the header is read into a private copy, sizes are compared with the
 * file's, and only then is something mapped.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing.h"
#include "huge.h"
#include "keeper.h"
#include "segment_check.h"

/* Read all of [0, bytes) unless the file ends first; bytes read, or -1. */
static ssize_t read_start(int fd, void *out, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (char *)out + done, bytes - done,
				  (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (!n)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static enum engram_status too_short(uint64_t needed, uint64_t available,
				    struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ETOOSHORT,
			 "the file has %" PRIu64 " bytes of %" PRIu64,
			 available, needed);
	engram_error_figures(err, needed, available);
	return ENGRAM_ETOOSHORT;
}

static enum engram_status check_identity(const struct engram_segment_header *h,
					 struct engram_error *err)
{
	if (h->magic && h->magic != ENGRAM_SEGMENT_MAGIC)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"magic %#018" PRIx64
					": not a segment of engramd",
					h->magic);
	if (!h->magic || !h->abi_version)
		return engram_error_set(err, ENGRAM_ENOTREADY,
					"the segment is still being written");
	if (h->abi_version == ENGRAM_ABI_VERSION)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EVERSION,
			 "the segment has ABI version %u, this program reads "
			 "%u",
			 h->abi_version, ENGRAM_ABI_VERSION);
	engram_error_figures(err, ENGRAM_ABI_VERSION, h->abi_version);
	return ENGRAM_EVERSION;
}

static enum engram_status check_sizes(const struct engram_segment_header *h,
				      uint64_t file_bytes,
				      struct engram_error *err)
{
	if (h->data_offset < sizeof(*h) ||
	    h->data_offset % ENGRAM_SEGMENT_ALIGN ||
	    h->data_offset > h->total_bytes)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"data_offset is %" PRIu64
					" in a segment of %" PRIu64 " bytes",
					h->data_offset, h->total_bytes);
	if (h->total_bytes > file_bytes)
		return too_short(h->total_bytes, file_bytes, err);
	return ENGRAM_OK;
}

/* The private copy of the fixed part, sizes checked. */
static enum engram_status read_fixed(int fd, struct engram_segment_header *h,
				     struct engram_error *err)
{
	enum engram_status status;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st))
		return engram_error_sys(err, errno, "fstat");
	if (!S_ISREG(st.st_mode))
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"the descriptor is not of a file");
	if ((uint64_t)st.st_size < sizeof(*h))
		return too_short(sizeof(*h), (uint64_t)st.st_size, err);
	/* Twice: what is read after abi_version was seen is whole. */
	n = read_start(fd, h, sizeof(*h));
	if (n == (ssize_t)sizeof(*h)) {
		status = check_identity(h, err);
		if (status)
			return status;
		n = read_start(fd, h, sizeof(*h));
	}
	if (n < 0)
		return engram_error_sys(err, errno, "read the header");
	if (n < (ssize_t)sizeof(*h))
		return too_short(sizeof(*h), (uint64_t)n, err);
	return check_sizes(h, (uint64_t)st.st_size, err);
}

static enum engram_status check_header(const struct engram_segment_header *h,
				       const void *region,
				       struct engram_error *err)
{
	uint64_t sum = segment_header_checksum(h, region);
	enum engram_status status;

	/* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bytes */
	if (memcmp(h, region, sizeof(*h)))
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"the header changed while it was "
					"read");
	if (sum != h->header_checksum)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"header checksum %016" PRIx64
					", the header says %016" PRIx64,
					sum, h->header_checksum);
	if (h->state == ENGRAM_SEGMENT_FILLING)
		return engram_error_set(err, ENGRAM_ENOTREADY,
					"the segment is still being written");
	if (h->state != ENGRAM_SEGMENT_READY)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"state %u is unknown", h->state);
	status = segment_check_fields(h, ENGRAM_EDAMAGED, err);
	if (!status)
		status = segment_check_places(h, err);
	if (status)
		return status;
	return segment_check_columns(
		h, (const int64_t *)((const char *)region + h->primes.offset),
		(const int64_t *)((const char *)region + h->offsets.offset),
		ENGRAM_EDAMAGED, err);
}

/* A copy, so that what was checked is what is used: engramd may write the next
 * generation into the segment, or die while it does. */
static enum engram_status copy_header(int fd, struct engram_segment_map *m,
				      struct engram_error *err)
{
	ssize_t n;
	void *p = mmap(NULL, m->header_bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return engram_error_sys(err, errno, "mmap %" PRIu64 " bytes",
					m->header_bytes);
	m->header = p;
	n = read_start(fd, p, m->header_bytes);
	if (n < 0)
		return engram_error_sys(err, errno, "read the header");
	if ((uint64_t)n < m->header_bytes)
		return too_short(m->header_bytes, (uint64_t)n, err);
	if (mprotect(p, m->header_bytes, PROT_READ))
		return engram_error_sys(err, errno, "mprotect");
	return ENGRAM_OK;
}

/* Most of the region is zeros, as is a page that is given back. */
static enum engram_status give_back_zeros(const struct engram_segment_map *m,
					  struct engram_error *err)
{
	static const char zeros[4096];
	char *base = (char *)m->header;
	uint64_t used = m->header_bytes;

	while (used &&
	       !memcmp(base + used - sizeof(zeros), zeros, sizeof(zeros)))
		used -= sizeof(zeros);
	used = round_up(used, (uint64_t)sysconf(_SC_PAGESIZE));
	if (used < m->header_bytes &&
	    madvise(base + used, m->header_bytes - used, MADV_DONTNEED))
		return engram_error_sys(err, errno, "madvise");
	return ENGRAM_OK;
}

/* What is mapped from, and what for: PROT_READ, with PROT_WRITE or not. */
struct map_source {
	int fd;
	int protection;
	uint64_t page;
};

static void *map_pages(const struct map_source *from, uint64_t begin,
		       uint64_t bytes, struct engram_error *err)
{
	const int writable = from->protection & PROT_WRITE;
	void *p = segment_mmap(from->fd, begin, bytes, from->protection,
			       from->page);
	enum engram_status status;

	if (p == MAP_FAILED) {
		status =
			engram_error_sys(err, errno, "mmap %" PRIu64 " bytes%s",
					 bytes, writable ? " for writing" : "");
		if (writable && status == ENGRAM_EPERM)
			engram_error_fix(err, "ask the sidecar for a writable "
					      "descriptor");
		return NULL;
	}
	if (madvise(p, bytes, MADV_DONTFORK)) {
		engram_error_sys(err, errno, "madvise");
		munmap(p, bytes);
		return NULL;
	}
	return p;
}

/* Map [begin, end) of the file, rounded to pages, as data_map[i]. */
static const char *map_run(const struct map_source *from, uint64_t begin,
			   uint64_t end, struct engram_segment_map *m, int i,
			   struct engram_error *err)
{
	uint64_t start = begin - begin % from->page;

	m->data_map_bytes[i] = round_up(end, from->page) - start;
	m->data_map[i] = map_pages(from, start, m->data_map_bytes[i], err);
	return m->data_map[i] ? (const char *)m->data_map[i] + (begin - start)
			      : NULL;
}

static int map_rows(const struct map_source *from, struct engram_segment_map *m,
		    struct engram_error *err)
{
	const struct engram_segment_header *h = m->header;
	uint64_t scale_bytes = segment_scale_bytes(h);
	const char *codes, *scales;

	if (m->row_begin == m->row_end)
		return 1;
	codes = map_run(from, h->codes_offset + m->row_begin * h->code_stride,
			h->codes_offset + m->row_end * h->code_stride, m, 0,
			err);
	if (!codes)
		return 0;
	m->codes = codes;
	if (!scale_bytes)
		return 1;
	if (h->record_layout == ENGRAM_PACKED) {
		m->scales = codes + segment_code_bytes(h);
		return 1;
	}
	scales =
		map_run(from, h->scales_offset + m->row_begin * scale_bytes,
			h->scales_offset + m->row_end * scale_bytes, m, 1, err);
	m->scales = scales;
	return scales != NULL;
}

static enum engram_status map_checked(int fd, int protection,
				      uint64_t row_begin, uint64_t row_end,
				      struct engram_segment_map *m,
				      struct engram_error *err)
{
	struct map_source from = {.fd = fd, .protection = protection};
	struct engram_error fault = {.status = ENGRAM_OK};
	struct engram_segment_header h;
	enum engram_status status;

	status = read_fixed(fd, &h, err);
	if (status)
		return status;
	from.page = segment_page_bytes(fd);
	if (!from.page)
		return engram_error_sys(err, errno, "fstatfs");
	m->header_bytes = h.data_offset;
	status = copy_header(fd, m, err);
	if (!status)
		status = check_header(&h, m->header, err);
	if (!status)
		status = give_back_zeros(m, err);
	if (status)
		return status;
	if (row_end == UINT64_MAX)
		row_end = h.rows;
	if (row_begin > row_end || row_end > h.rows) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "rows %" PRIu64 "..%" PRIu64
				 " of a segment of %" PRIu64,
				 row_begin, row_end, h.rows);
		engram_error_fix(err, "ask for rows that it has");
		return ENGRAM_EINVAL;
	}
	m->row_begin = row_begin;
	m->row_end = row_end;
	if (map_rows(&from, m, &fault))
		return ENGRAM_OK;
	if (err)
		*err = fault;
	return fault.status;
}

static const char *fix_for(enum engram_status status)
{
	switch (status) {
	case ENGRAM_ENOTREADY:
		return "wait for the table to be ready, then attach again";
	case ENGRAM_EVERSION:
		return "install the client of the sidecar's version";
	case ENGRAM_ETOOSHORT:
	case ENGRAM_EDAMAGED:
		return "unload the table and load it again";
	case ENGRAM_ENOMEM:
		return "raise RLIMIT_AS or vm.max_map_count";
	default:
		return "check that the descriptor came from engramd";
	}
}

static enum engram_status map_segment(int fd, int protection,
				      uint64_t row_begin, uint64_t row_end,
				      struct engram_segment_map *out,
				      struct engram_error *err)
{
	struct engram_segment_map m = {0};
	enum engram_status status;

	memset(out, 0, sizeof(*out));
	status = map_checked(fd, protection, row_begin, row_end, &m, err);
	if (status) {
		engram_segment_unmap(&m);
		engram_error_context(err, "map segment");
		if (err && !*err->fix)
			engram_error_fix(err, "%s", fix_for(status));
		return status;
	}
	*out = m;
	return ENGRAM_OK;
}

enum engram_status engram_segment_map_fd(int fd, uint64_t row_begin,
					 uint64_t row_end,
					 struct engram_segment_map *out,
					 struct engram_error *err)
{
	return map_segment(fd, PROT_READ, row_begin, row_end, out, err);
}

enum engram_status engram_segment_map_writable(int fd, uint64_t row_begin,
					       uint64_t row_end,
					       struct engram_segment_map *out,
					       struct engram_error *err)
{
	return map_segment(fd, PROT_READ | PROT_WRITE, row_begin, row_end, out,
			   err);
}

enum engram_status engram_segment_protect(const struct engram_segment_map *map,
					  struct engram_error *err)
{
	enum engram_status status;
	int i;

	for (i = 0; i < 2; i++) {
		if (!map->data_map[i] ||
		    !mprotect(map->data_map[i], map->data_map_bytes[i],
			      PROT_READ))
			continue;
		status = engram_error_sys(err, errno,
					  "mprotect %" PRIu64 " bytes",
					  map->data_map_bytes[i]);
		engram_error_fix(err, "raise vm.max_map_count, then protect "
				      "again or detach");
		return status;
	}
	return ENGRAM_OK;
}

void engram_segment_unmap(struct engram_segment_map *map)
{
	int i;

	for (i = 0; i < 2; i++)
		if (map->data_map[i])
			munmap(map->data_map[i], map->data_map_bytes[i]);
	if (map->header)
		munmap((void *)map->header, map->header_bytes);
	memset(map, 0, sizeof(*map));
}

enum engram_status engram_segment_open(const struct engram_backing *backing,
				       const char *name, int *fd,
				       struct engram_error *err)
{
	struct engram_segment_entry entry;
	char path[SEGMENT_PATH_MAX];
	enum engram_status status;

	*fd = -1;
	if (!segment_name_parse(name, &entry) || entry.temporary ||
	    entry.control) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "\"%s\" is not the name of a segment", name);
		engram_error_fix(err, "names are engramd.<instance>.<table>."
				      "<layer>.g<generation>[.n<node>]");
		return ENGRAM_EINVAL;
	}
	if (backing->kind == ENGRAM_BACKING_MEMFD && backing->keeper) {
		*fd = keeper_open(backing->keeper, name);
		if (*fd >= 0)
			return ENGRAM_OK;
		status = engram_error_sys(err, errno, "memfd %s", name);
		engram_error_fix(err, "ask the sidecar which generation is "
				      "current");
		return status;
	}
	status = backing_path(path, backing, name, err);
	if (status)
		return status;
	*fd = backing_open_retry(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	if (*fd >= 0)
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "open %s", path);
	engram_error_fix(err, status == ENGRAM_EPERM
				      ? "join the group that owns it"
				      : "ask the sidecar which generation is "
					"current");
	engram_error_path(err, "%s", path);
	return status;
}
