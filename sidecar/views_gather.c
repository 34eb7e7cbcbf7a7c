/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"
#include "views.h"
#include "views_gather.h"

/* The leases that it may ask for rows of. */
static json_t *view_bindings(const struct gather_ring *ring)
{
	json_t *leases = json_array();
	uint32_t i;

	for (i = 0; leases && i < GATHER_BINDINGS; i++) {
		const struct gather_binding *b =
			atomic_load(&ring->bindings[i]);

		if (b && json_array_append_new(
				 leases, json_integer((json_int_t)b->lease))) {
			json_decref(leases);
			return NULL;
		}
	}
	return leases;
}

/* ---- what clients say; any bytes ---- */

static json_int_t load_count(const uint64_t *from)
{
	return (json_int_t)(__atomic_load_n(from, __ATOMIC_RELAXED) &
			    INT64_MAX);
}

static uint32_t load(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static const char *path_name(uint32_t path)
{
	static const char *const names[] = {"auto", "uva", "host", "hybrid"};

	return path < sizeof(names) / sizeof(names[0]) ? names[path] : "?";
}

/* Microseconds, or null if it was not measured. */
static json_t *view_time(const uint32_t *ns)
{
	uint32_t n = load(ns);

	return n ? json_real(n / 1e3) : json_null();
}

static json_t *view_choices(const struct gather_ring *ring)
{
	const struct engram_ring_choice *c =
		engram_ring_header(&ring->ring)->choices;
	json_t *array = json_array();
	uint32_t rows;

	for (uint32_t i = 0; array && i < ENGRAM_RING_CHOICES; i++, c++) {
		rows = load(&c->rows);
		if (!rows)
			break;
		if (json_array_append_new(
			    array,
			    json_pack("{s:I, s:s, s:f, s:o, s:o, s:o}", "rows",
				      (json_int_t)rows, "path",
				      path_name(load(&c->path)), "own",
				      load(&c->own_ppt) / 1e3, "uva_us",
				      view_time(&c->uva_ns), "host_us",
				      view_time(&c->host_ns), "hybrid_us",
				      view_time(&c->hybrid_ns)))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

/* ---- both ---- */

static json_t *view_ring(const struct gather_entry *entry)
{
	const struct gather_use use = gather_ring_use(entry->ring);
	const struct engram_ring_counts *said =
		&engram_ring_header(&entry->ring->ring)->counts;

	return json_pack("{s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
			 " s:I}",
			 "ring", (json_int_t)entry->id, "bytes",
			 (json_int_t)entry->ring->ring.bytes, "leases",
			 view_bindings(entry->ring), "batches",
			 (json_int_t)use.batches, "refused",
			 (json_int_t)use.refused, "rows", (json_int_t)use.rows,
			 "fallback", load_count(&said->fallback), "failed",
			 load_count(&said->failed), "cache_lookups",
			 load_count(&said->cache_lookups), "cache_hits",
			 load_count(&said->cache_hits), "repeats",
			 load_count(&said->repeats));
}

json_t *view_rings(const struct client *client)
{
	json_t *rings = json_array();
	const struct gather_entry *entry;

	LIST_FOREACH(entry, &client->server->gather.rings, entry)
	if (entry->client == client &&
	    json_array_append_new(rings, view_ring(entry))) {
		json_decref(rings);
		return NULL;
	}
	return rings;
}

/* Those of the clients that have measured. */
static json_t *view_measured(const struct gather *gather)
{
	json_t *array = json_array();
	const struct gather_entry *e;

	LIST_FOREACH(e, &gather->rings, entry)
	{
		json_t *choices = view_choices(e->ring);

		if (choices && !json_array_size(choices)) {
			json_decref(choices);
			continue;
		}
		if (json_array_append_new(
			    array,
			    json_pack("{s:I, s:i, s:I, s:o}", "connection",
				      (json_int_t)e->client->id, "pid",
				      (int)e->client->peer.pid, "ring",
				      (json_int_t)e->id, "choices", choices))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

json_t *view_gather(const struct gather *gather)
{
	struct engram_ring_counts all = {0};
	uint64_t bytes = 0;
	const struct gather_entry *e;
	struct gather_counts counts;
	int rings = 0;

	if (!gather->running)
		return json_null();
	gather_pool_counts(&gather->pool, &counts);
	LIST_FOREACH(e, &gather->rings, entry)
	{
		const struct engram_ring_counts *said =
			&engram_ring_header(&e->ring->ring)->counts;

		rings++;
		bytes += e->ring->ring.bytes;
		all.fallback += (uint64_t)load_count(&said->fallback);
		all.failed += (uint64_t)load_count(&said->failed);
		all.cache_lookups += (uint64_t)load_count(&said->cache_lookups);
		all.cache_hits += (uint64_t)load_count(&said->cache_hits);
		all.repeats += (uint64_t)load_count(&said->repeats);
	}
	return json_pack(
		"{s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
		" s:I, s:f, s:b, s:o}",
		"threads", (json_int_t)gather->pool.num_workers, "rings", rings,
		"ring_bytes", (json_int_t)bytes, "batches",
		(json_int_t)counts.batches, "rows", (json_int_t)counts.rows,
		"refused", (json_int_t)counts.refused, "fallback",
		load_count(&all.fallback), "failed", load_count(&all.failed),
		"cache_lookups", load_count(&all.cache_lookups), "cache_hits",
		load_count(&all.cache_hits), "repeats",
		load_count(&all.repeats), "cpu_seconds", counts.cpu_seconds,
		"asleep", atomic_load(&gather->pool.asleep), "measured",
		view_measured(gather));
}
