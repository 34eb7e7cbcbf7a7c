/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint takes in memory, and whether there is that much now. */
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
	uint64_t total;	  /* whole segments: what a load is admitted by */
	uint64_t small;	  /* what is touched with small pages */
};

static uint64_t code_bytes(const struct checkpoint *c)
{
	return (uint64_t)c->dim * (c->dtype == ENGRAM_BF16 ? 2 : 1);
}

/* Two runs of them, each from a boundary on; one may be empty. */
static void add_records(struct sizes *s, uint64_t total, uint64_t first,
			uint64_t second)
{
	const uint64_t header = total - round_to(first, ENGRAM_SEGMENT_ALIGN) -
				round_to(second, ENGRAM_SEGMENT_ALIGN);

	s->header += header;
	s->small += header + round_to(first, SMALL_PAGE) +
		    round_to(second, SMALL_PAGE);
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
	s->total += total;
	if (layout == ENGRAM_PACKED)
		add_records(s, total, records, 0);
	else
		add_records(s, total, codes, records - codes);
	return ENGRAM_OK;
}

/* The first mount of hugetlbfs; false if there is none. */
static bool find_hugetlbfs(struct engram_backing *backing)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	const struct mntent *m;
	bool found = false;

	if (!mounts)
		return false;
	while (!found && (m = getmntent(mounts))) {
		found = !strcmp(m->mnt_type, "hugetlbfs") &&
			strlen(m->mnt_dir) < sizeof(backing->dir);
		if (found)
			snprintf(backing->dir, sizeof(backing->dir), "%s",
				 m->mnt_dir);
	}
	endmntent(mounts);
	return found;
}

/* As a load would be admitted, by an engramd that holds nothing else. */
static enum engram_status admit(const struct engram_backing *backing,
				uint64_t bytes, struct engram_error *err)
{
	static const struct loader_progress none;
	const struct memory_need need = {.bytes = bytes};
	struct memory_promise promise;
	struct memory_ledger ledger;
	enum engram_status status;

	status = memory_ledger_init(&ledger, "", err);
	if (status)
		return status;
	status = memory_admit(&ledger, backing, &need, &none, &promise, err);
	if (!status)
		memory_release(&ledger, &promise);
	memory_ledger_free(&ledger);
	return status;
}

static json_t *verdict(const char *name, uint64_t page, uint64_t bytes,
		       enum engram_status status,
		       const struct engram_error *err)
{
	struct inspect_object o;

	inspect_begin(&o);
	inspect_put(&o, "backing", json_string(name));
	inspect_put_u64(&o, "page_bytes", page);
	inspect_put_u64(&o, "bytes", bytes);
	inspect_put(&o, "fits", json_boolean(!status));
	if (status)
		inspect_put_error(&o, err);
	return inspect_end(&o);
}

static json_t *try_backing(const char *name, struct engram_backing *backing,
			   const struct sizes *s)
{
	enum engram_status status = ENGRAM_OK;
	struct engram_error err;
	uint64_t page, bytes;

	if (backing->kind == ENGRAM_BACKING_HUGETLBFS &&
	    !find_hugetlbfs(backing)) {
		status = engram_error_set(&err, ENGRAM_ENOTFOUND,
					  "no hugetlbfs is mounted");
		engram_error_fix(&err, "mount one and reserve pages in "
				       "/proc/sys/vm/nr_hugepages");
	}
	page = engram_backing_page(backing);
	bytes = page == SMALL_PAGE ? s->small : round_to(s->total, page);
	if (!status)
		status = admit(backing, s->total, &err);
	return verdict(name, page, bytes, status, &err);
}

static json_t *backings(const struct sizes *s)
{
	struct engram_backing shm = {.kind = ENGRAM_BACKING_SHM,
				     .dir = "/dev/shm"};
	struct engram_backing huge = {.kind = ENGRAM_BACKING_HUGETLBFS};
	struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_error err;
	enum engram_status status;
	json_t *list = json_array();
	bool good;

	good = !json_array_append_new(list, try_backing("shm", &shm, s));
	/* The same file system with transparent huge pages. */
	status = admit(&shm, s->total, &err);
	good = !json_array_append_new(list, verdict("shm", ENGRAM_SEGMENT_ALIGN,
						    s->total, status, &err)) &&
	       good;
	good = !json_array_append_new(list,
				      try_backing("hugetlbfs", &huge, s)) &&
	       good;
	good = !json_array_append_new(list, try_backing("memfd", &memfd, s)) &&
	       good;
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
	inspect_put_u64(&o, "total_bytes", s.total);
	inspect_put_u64(&o, "gpu_page_tables_bytes",
			gpu_page_tables(s.records));
	inspect_put(&o, "backings", backings(&s));
	inspect_put(&o, "lock", lockable(s.total));
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
	if (!find_hugetlbfs(&huge) ||
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
