/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint takes in memory, and whether there is that much now. */
#include <dirent.h>
#include <inttypes.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect.h"
#include "memory.h"

#define SMALL_PAGE 4096u

static uint64_t round_to(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* Of a GPU that reads them: 8 bytes for each small page, 2 MiB a GiB. */
static uint64_t gpu_page_tables(uint64_t bytes)
{
	return round_to(bytes, SMALL_PAGE) / SMALL_PAGE * 8;
}

struct sizes {
	uint64_t records; /* rows */
	uint64_t header;  /* what is before them, all layers */
	uint64_t segment[ENGRAM_LAYERS_MAX]; /* of each layer, a file */
	uint32_t num_layers;
};

/* As many files of whole pages: what a load is admitted by. */
static uint64_t in_pages(const struct sizes *s, uint64_t page)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->num_layers; i++)
		bytes += round_to(s->segment[i], page);
	return bytes;
}

static uint64_t code_bytes(const struct checkpoint *c)
{
	return (uint64_t)c->dim * (c->dtype == ENGRAM_BF16 ? 2 : 1);
}

static enum engram_status add_layer(const struct checkpoint *c,
				    const struct checkpoint_layer *layer,
				    enum engram_record_layout layout,
				    struct sizes *s, struct engram_error *err)
{
	const uint64_t codes = code_bytes(c) * layer->rows;
	struct engram_segment_source *sources;
	struct engram_segment_spec spec;
	enum engram_status status;
	uint64_t records, total;

	status = checkpoint_spec(c, layer, layout, &spec, &sources, err);
	if (status)
		return status;
	spec.instance = "inspect";
	spec.table = "inspect";
	spec.generation = 1;
	status = engram_segment_plan(&spec, &total, err);
	free(sources);
	if (status)
		return status;
	records = layer->rows * engram_segment_record_bytes(&spec.head);
	s->records += records;
	s->segment[s->num_layers++] = total;
	/* The rows are one run from a boundary on, or two: one may be empty. */
	if (layout == ENGRAM_PACKED)
		s->header += total - round_to(records, ENGRAM_SEGMENT_ALIGN);
	else
		s->header += total - round_to(codes, ENGRAM_SEGMENT_ALIGN) -
			     round_to(records - codes, ENGRAM_SEGMENT_ALIGN);
	return ENGRAM_OK;
}

/* The first mount of hugetlbfs with pages of that size, 0 for any; false if
 * there is none. */
static bool find_hugetlbfs(struct engram_backing *backing, uint64_t page)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	const struct mntent *m;
	bool found = false;

	if (!mounts)
		return false;
	while (!found && (m = getmntent(mounts))) {
		if (strcmp(m->mnt_type, "hugetlbfs") ||
		    strlen(m->mnt_dir) >= sizeof(backing->dir))
			continue;
		snprintf(backing->dir, sizeof(backing->dir), "%s", m->mnt_dir);
		found = !page || engram_backing_page(backing) == page;
	}
	endmntent(mounts);
	return found;
}

/* As a load would be admitted, by an engramd that holds nothing else. */
static enum engram_status admit(const struct engram_backing *backing,
				const struct memory_need *need,
				struct engram_error *err)
{
	static const struct loader_progress none;
	struct memory_promise promise;
	struct memory_ledger ledger;
	enum engram_status status;

	status = memory_ledger_init(&ledger, "", err);
	if (status)
		return status;
	status = memory_admit(&ledger, backing, need, &none, &promise, err);
	if (!status)
		memory_release(&ledger, &promise);
	memory_ledger_free(&ledger);
	return status;
}

static enum engram_status not_mounted(uint64_t page, uint64_t bytes,
				      struct engram_error *err)
{
	const uint64_t kib = page / 1024;

	engram_error_set(
		err, ENGRAM_ENOTFOUND,
		"no hugetlbfs with pages of %" PRIu64 " KiB is mounted", kib);
	engram_error_fix(err,
			 "mount -t hugetlbfs -o pagesize=%" PRIu64
			 "K none DIR, and set pages aside: echo %" PRIu64
			 " >/sys/kernel/mm/hugepages/hugepages-%" PRIu64
			 "kB/nr_hugepages",
			 kib, bytes / page, kib);
	return ENGRAM_ENOTFOUND;
}

/* `page` is that of hugetlb, or 0.  A file of hugetlbfs has one at least: the
 * control page takes one, too. */
static json_t *try_backing(enum engram_backing_kind kind, uint64_t page,
			   const struct sizes *s)
{
	struct engram_backing backing = {.kind = kind, .dir = "/dev/shm"};
	const uint64_t rounded = page ? page : SMALL_PAGE;
	const uint64_t control = kind == ENGRAM_BACKING_HUGETLBFS ? page : 0;
	const struct memory_need need = {.bytes =
						 in_pages(s, rounded) + control,
					 .files = s->num_layers + 1};
	static const char *const names[] = {
		[ENGRAM_BACKING_SHM] = "shm",
		[ENGRAM_BACKING_HUGETLBFS] = "hugetlbfs",
		[ENGRAM_BACKING_MEMFD] = "memfd",
	};
	enum engram_status status;
	struct inspect_object o;
	struct engram_error err;

	if (kind == ENGRAM_BACKING_MEMFD)
		backing.memfd_page = page;
	if (page && kind == ENGRAM_BACKING_HUGETLBFS &&
	    !find_hugetlbfs(&backing, page))
		status = not_mounted(page, need.bytes, &err);
	else
		status = admit(&backing, &need, &err);
	inspect_begin(&o);
	inspect_put(&o, "backing", json_string(names[kind]));
	inspect_put_u64(&o, "page_bytes", rounded);
	inspect_put_u64(&o, "bytes", need.bytes);
	inspect_put(&o, "fits", json_boolean(!status));
	if (status)
		inspect_put_error(&o, &err);
	return inspect_end(&o);
}

#define PAGE_SIZES_MAX 8

/* The sizes of huge pages that the kernel can set aside, smallest first. */
static uint32_t huge_page_sizes(uint64_t out[PAGE_SIZES_MAX])
{
	DIR *dir = opendir("/sys/kernel/mm/hugepages");
	const struct dirent *entry;
	uint32_t n = 0, at;
	uint64_t kib;

	while (dir && n < PAGE_SIZES_MAX && (entry = readdir(dir))) {
		if (sscanf(entry->d_name, "hugepages-%" SCNu64 "kB", &kib) != 1)
			continue;
		for (at = n++; at && out[at - 1] > kib * 1024; at--)
			out[at] = out[at - 1];
		out[at] = kib * 1024;
	}
	if (dir)
		closedir(dir);
	return n;
}

static json_t *backings(const struct sizes *s)
{
	static const enum engram_backing_kind kinds[] = {
		ENGRAM_BACKING_HUGETLBFS, ENGRAM_BACKING_MEMFD};
	uint64_t pages[PAGE_SIZES_MAX];
	const uint32_t n = huge_page_sizes(pages);
	json_t *list = json_array();
	bool good;

	/* Transparent huge pages change nothing: segments end at 2 MiB. */
	good = !json_array_append_new(list,
				      try_backing(ENGRAM_BACKING_SHM, 0, s)) &&
	       !json_array_append_new(list,
				      try_backing(ENGRAM_BACKING_MEMFD, 0, s));
	for (size_t k = 0; k < 2; k++)
		for (uint32_t i = 0; i < n && good; i++)
			good = !json_array_append_new(
				list, try_backing(kinds[k], pages[i], s));
	if (good)
		return list;
	json_decref(list);
	return NULL;
}

static json_t *lockable(uint64_t bytes)
{
	struct inspect_object o;
	struct engram_error err;
	enum engram_status status = memory_lockable(bytes, &err);

	inspect_begin(&o);
	inspect_put(&o, "fits", json_boolean(!status));
	if (status)
		inspect_put_error(&o, &err);
	return inspect_end(&o);
}

json_t *inspect_memory(const struct checkpoint *c,
		       enum engram_record_layout layout,
		       struct engram_error *err)
{
	struct sizes s = {0};
	struct inspect_object o;
	uint32_t i;

	if (!c->geometry || !c->num_layers)
		return json_null();
	for (i = 0; i < c->num_layers; i++)
		if (add_layer(c, &c->layers[i], layout, &s, err))
			return json_null();
	inspect_begin(&o);
	inspect_put(&o, "layout",
		    json_string(layout == ENGRAM_PACKED ? "packed" : "split"));
	inspect_put_u64(&o, "records_bytes", s.records);
	inspect_put_u64(&o, "header_bytes", s.header);
	inspect_put_u64(&o, "total_bytes", in_pages(&s, SMALL_PAGE));
	inspect_put_u64(&o, "gpu_page_tables_bytes",
			gpu_page_tables(s.records));
	inspect_put(&o, "backings", backings(&s));
	inspect_put(&o, "lock", lockable(in_pages(&s, SMALL_PAGE)));
	return inspect_end(&o);
}

json_t *inspect_room(void)
{
	struct engram_backing shm = {.kind = ENGRAM_BACKING_SHM,
				     .dir = "/dev/shm"};
	struct engram_backing huge = {.kind = ENGRAM_BACKING_HUGETLBFS};
	uint64_t in_shm, in_pool;
	struct inspect_object o;
	char file[512];

	if (engram_backing_room(&shm, &in_shm, NULL))
		in_shm = 0;
	if (!find_hugetlbfs(&huge, 0) ||
	    engram_backing_room(&huge, &in_pool, NULL))
		in_pool = 0;
	inspect_begin(&o);
	inspect_put_room(&o, "available_bytes", memory_available(""));
	inspect_put_room(&o, "cgroup_bytes",
			 memory_cgroup_room("", file, sizeof(file)));
	inspect_put_room(&o, "shm_bytes", in_shm);
	inspect_put_room(&o, "hugetlbfs_bytes", in_pool);
	return inspect_end(&o);
}

/* ---- ranks ---- */

static uint64_t record_bytes(const struct checkpoint *c)
{
	const struct engram_segment_header h = {
		.dim = c->dim,
		.dtype = c->dtype,
		.scale_scheme = c->scale_scheme,
		.block_size = c->block_size,
	};

	return engram_segment_record_bytes(&h);
}

/* NULL with err->status for a size without such ranks, else no memory. */
static json_t *rank(const struct checkpoint *c, uint32_t tp_rank,
		    uint32_t tp_size, struct engram_error *err)
{
	const struct engram_geometry *g = c->geometry;
	struct engram_shard shard = {0};
	struct inspect_object o;
	uint64_t rows = 0;
	uint32_t i;

	for (i = 0; i < c->num_layers; i++) {
		const size_t at = (size_t)c->layers[i].geometry_index;

		if (engram_shard_of(g->primes + at * g->num_cols, g->num_cols,
				    tp_rank, tp_size, &shard, err))
			return NULL;
		rows += (uint64_t)(shard.row_end - shard.row_begin);
	}
	inspect_begin(&o);
	inspect_put_u64(&o, "tp_rank", tp_rank);
	inspect_put_u64(&o, "head_begin", shard.head_begin);
	inspect_put_u64(&o, "head_end", shard.head_end);
	inspect_put_u64(&o, "rows", rows);
	inspect_put_u64(&o, "bytes", rows * record_bytes(c));
	inspect_put_u64(&o, "gpu_page_tables_bytes",
			gpu_page_tables(rows * record_bytes(c)));
	return inspect_end(&o);
}

json_t *inspect_ranks(const struct checkpoint *c, uint32_t tp_size,
		      struct checkpoint_faults *faults)
{
	struct engram_error err;
	json_t *list = json_array();
	json_t *one;
	uint32_t i;

	engram_error_clear(&err);
	if (!c->geometry || !c->num_layers)
		return list;
	for (i = 0; i < tp_size; i++) {
		one = rank(c, i, tp_size, &err);
		if (!one && err.status && !checkpoint_faults_add(faults, &err))
			return list;
		if (json_array_append_new(list, one)) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}
