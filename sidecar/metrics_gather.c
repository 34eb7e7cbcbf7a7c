/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to tell of gathering; nothing where it is off. */
#include <stddef.h>
#include <stdio.h>

#include "metrics.h"

static void expose_pool(struct exposition *e, const struct gather_pool *pool)
{
	struct gather_counts counts;

	gather_pool_counts(pool, &counts);
	expose_gauge(e, "engram_gather_threads", "Threads that gather rows.",
		     pool->num_workers);
	expose_gauge(e, "engram_gather_asleep",
		     "1 while they look only now and then.",
		     atomic_load(&pool->asleep));
	expose_counter(e, "engram_gather_batches_total",
		       "Batches that were gathered.", (double)counts.batches);
	expose_counter(e, "engram_gather_rows_total", "Rows that were copied.",
		       (double)counts.rows);
	expose_counter(e, "engram_gather_refused_batches_total",
		       "Batches that asked for what their ring is not bound "
		       "to, or were unsound.",
		       (double)counts.refused);
}

static void expose_cpu(struct exposition *e, const struct gather_pool *pool)
{
	char index[16];

	expose_family(e, "engram_gather_thread_cpu_seconds_total", "counter",
		      "CPU time of a thread that gathers.");
	for (uint32_t i = 0; i < pool->num_workers; i++) {
		snprintf(index, sizeof(index), "%u", i);
		expose_real(e, LABELS("thread", index),
			    gather_worker_cpu_seconds(&pool->workers[i]));
	}
}

/* Batches that are posted and not answered. */
static uint64_t pending(const struct gather_ring *ring)
{
	uint64_t n = 0;

	for (uint32_t s = 0; s < ring->ring.shape.slots; s++) {
		const uint32_t seq = engram_ring_posted(&ring->ring, s);

		n += seq != ring->start[s] &&
		     !engram_ring_idle(&ring->ring, s, seq);
	}
	return n;
}

static void expose_rings(struct exposition *e, const struct gather *gather)
{
	const struct gather_entry *entry;
	uint64_t bytes = 0, waiting = 0, rings = 0;

	LIST_FOREACH(entry, &gather->rings, entry)
	{
		rings++;
		bytes += entry->ring->ring.bytes;
		waiting += pending(entry->ring);
	}
	expose_gauge(e, "engram_gather_rings", "Rings that are open.",
		     (double)rings);
	expose_gauge(e, "engram_gather_ring_bytes",
		     "Memory of open rings, which is the clients'.",
		     (double)bytes);
	expose_gauge(e, "engram_gather_pending_batches",
		     "Batches that are posted and not answered yet.",
		     (double)waiting);
}

/* ---- what clients say ---- */

/* Counters that clients keep in their rings; another is a row here and a
 * field there. */
static const struct {
	const char *name, *help;
	size_t offset; /* in struct engram_ring_counts */
} said[] = {
	{"engram_client_fallback_rows_total",
	 "Rows that clients read themselves, engramd being late, as they "
	 "say.",
	 offsetof(struct engram_ring_counts, fallback)},
	{"engram_client_failed_rows_total",
	 "Rows that nobody could read, as clients say.",
	 offsetof(struct engram_ring_counts, failed)},
	{"engram_client_cache_lookup_rows_total",
	 "Rows that clients looked for in caches of their own, or twice in a "
	 "batch, as they say.",
	 offsetof(struct engram_ring_counts, cache_lookups)},
	{"engram_client_cache_hit_rows_total",
	 "Rows that clients found in their caches, as they say.",
	 offsetof(struct engram_ring_counts, cache_hits)},
	{"engram_client_cache_fill_rows_total",
	 "Rows that clients' caches took, as they say.",
	 offsetof(struct engram_ring_counts, cache_fills)},
	{"engram_client_repeated_rows_total",
	 "Rows that were in the same batch before, as clients say.",
	 offsetof(struct engram_ring_counts, repeats)},
};

static void expose_said(struct exposition *e, const struct gather *gather)
{
	struct engram_ring_counts counts;

	gather_said(gather, &counts);
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		expose_family(e, said[i].name, "counter", said[i].help);
		expose_count(e, NULL,
			     *(const uint64_t *)((const char *)&counts +
						 said[i].offset));
	}
}

struct choice_labels {
	char connection[24], ring[24], rows[16];
};

static uint32_t load(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static void expose_time(struct exposition *e, const struct choice_labels *l,
			const char *path, const uint32_t *ns)
{
	const uint32_t n = load(ns);

	if (n)
		expose_real(e,
			    LABELS("connection", l->connection, "ring", l->ring,
				   "rows", l->rows, "path", path),
			    n / 1e9);
}

static void expose_choices(struct exposition *e,
			   const struct gather_entry *entry)
{
	const struct engram_ring_choice *c =
		engram_ring_header(&entry->ring->ring)->choices;
	struct choice_labels l;
	uint32_t before = 0;

	snprintf(l.connection, sizeof(l.connection), "%llu",
		 (unsigned long long)entry->client->id);
	snprintf(l.ring, sizeof(l.ring), "%llu", (unsigned long long)entry->id);
	for (uint32_t i = 0; i < ENGRAM_RING_CHOICES; i++, c++) {
		const uint32_t rows = load(&c->rows);

		/* whatever a client writes there, no sample comes twice */
		if (rows <= before)
			return;
		before = rows;
		snprintf(l.rows, sizeof(l.rows), "%u", rows);
		expose_time(e, &l, "uva", &c->uva_ns);
		expose_time(e, &l, "host", &c->host_ns);
		expose_time(e, &l, "hybrid", &c->hybrid_ns);
	}
}

static void expose_measured(struct exposition *e, const struct gather *gather)
{
	const struct gather_entry *entry;

	expose_family(e, "engram_client_lookup_seconds", "gauge",
		      "How long a batch of about so many rows takes by a path, "
		      "as clients that choose one by size have measured.");
	LIST_FOREACH(entry, &gather->rings, entry)
	expose_choices(e, entry);
}

void metrics_gather(struct exposition *e, const struct gather *gather)
{
	if (!gather->running)
		return;
	expose_pool(e, &gather->pool);
	expose_cpu(e, &gather->pool);
	expose_rings(e, gather);
	expose_said(e, gather);
	expose_measured(e, gather);
}
