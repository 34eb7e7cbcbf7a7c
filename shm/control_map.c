/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the control page. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engram_control.h"
#include "segment.h"

static enum engram_status check_page(const struct engram_control_page *p,
				     struct engram_error *err)
{
	const uint64_t magic = engram_control_load64(&p->magic);
	const uint32_t abi = engram_control_load32(&p->abi_version);

	if (magic && magic != ENGRAM_CONTROL_MAGIC)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"magic %#018" PRIx64
					": not a control page of engramd",
					magic);
	if (!magic || !abi)
		return engram_error_set(err, ENGRAM_ENOTREADY,
					"the page is still being written");
	if (abi != ENGRAM_ABI_VERSION)
		return engram_error_set(err, ENGRAM_EVERSION,
					"the page has ABI version %u, this "
					"program reads %u",
					abi, ENGRAM_ABI_VERSION);
	if (p->page_bytes != sizeof(*p) ||
	    p->num_tables != ENGRAM_CONTROL_TABLES)
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"%u bytes with %u tables, not %zu with "
					"%u",
					p->page_bytes, p->num_tables,
					sizeof(*p), ENGRAM_CONTROL_TABLES);
	if (!memchr(p->instance, '\0', sizeof(p->instance)))
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"the instance name has no end");
	return ENGRAM_OK;
}

static enum engram_status map_page(int fd,
				   const struct engram_control_page **out,
				   struct engram_error *err)
{
	enum engram_status status;
	uint64_t page, bytes;
	struct stat st;
	void *p;

	if (fstat(fd, &st))
		return engram_error_sys(err, errno, "fstat");
	if ((uint64_t)st.st_size < sizeof(**out)) {
		engram_error_set(err, ENGRAM_ETOOSHORT,
				 "the file has %lld bytes of %zu",
				 (long long)st.st_size, sizeof(**out));
		engram_error_figures(err, sizeof(**out), (uint64_t)st.st_size);
		return ENGRAM_ETOOSHORT;
	}
	page = segment_page_bytes(fd);
	if (!page)
		return engram_error_sys(err, errno, "fstatfs");
	/* hugetlbfs takes advice on whole huge pages only. */
	bytes = round_up(sizeof(**out), page);
	p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return engram_error_sys(err, errno, "mmap");
	if (madvise(p, bytes, MADV_DONTFORK))
		status = engram_error_sys(err, errno, "madvise");
	else
		status = check_page(p, err);
	if (status) {
		engram_control_unmap(p);
		return status;
	}
	*out = p;
	return ENGRAM_OK;
}

enum engram_status engram_control_map_fd(int fd,
					 const struct engram_control_page **out,
					 struct engram_error *err)
{
	enum engram_status status;

	*out = NULL;
	status = map_page(fd, out, err);
	if (!status)
		return ENGRAM_OK;
	engram_error_context(err, "map control page");
	engram_error_fix(err, status == ENGRAM_EVERSION
				      ? "install the client of the sidecar's "
					"version"
				      : "connect to the sidecar again");
	return status;
}

void engram_control_unmap(const struct engram_control_page *page)
{
	size_t bytes = sizeof(*page);

	if (!page)
		return;
	/* A mapping of hugetlbfs goes by whole huge pages and refuses
	 * anything else with EINVAL, so the first size that works is the
	 * right one.  After any other error a larger size would take away
	 * what lies behind. */
	while (munmap((void *)page, bytes) && errno == EINVAL &&
	       bytes < (size_t)1 << 40)
		bytes = bytes == sizeof(*page) ? 65536 : bytes * 2;
}

/* Between two equal generations the name is that generation's: a slot is
 * withdrawn before it gets another name. */
static int read_slot(const struct engram_control_table *slot, const char *name,
		     uint64_t *generation)
{
	int ours;

	do {
		*generation = engram_control_load64(&slot->generation);
		ours = !strncmp(slot->name, name, sizeof(slot->name));
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while (engram_control_load64(&slot->generation) != *generation);
	return ours;
}

/* Changes are few and short: this many in a row are one that was not ended. */
#define TRIES 1000

static int read_current(const struct engram_control_table *slot,
			const char *name, uint64_t *generation,
			uint64_t content_id[2])
{
	uint64_t sequence;
	int ours, tries = 0;

	do {
		if (tries++ == TRIES)
			return 0;
		sequence = engram_control_load64(&slot->sequence);
		*generation = engram_control_load64(&slot->generation);
		content_id[0] = engram_control_load64(&slot->content_id[0]);
		content_id[1] = engram_control_load64(&slot->content_id[1]);
		ours = !strncmp(slot->name, name, sizeof(slot->name));
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while (sequence % 2 ||
		 engram_control_load64(&slot->sequence) != sequence);
	return ours && *generation;
}

int engram_control_current(const struct engram_control_page *page,
			   const char *name, uint64_t *generation,
			   uint64_t content_id[2])
{
	int i;

	for (i = 0; i < ENGRAM_CONTROL_TABLES; i++)
		if (read_current(&page->tables[i], name, generation,
				 content_id))
			return 1;
	*generation = content_id[0] = content_id[1] = 0;
	return 0;
}

uint64_t engram_control_generation(const struct engram_control_page *page,
				   const char *name)
{
	uint64_t generation;
	int i;

	for (i = 0; i < ENGRAM_CONTROL_TABLES; i++)
		if (read_slot(&page->tables[i], name, &generation))
			return generation;
	return 0;
}
