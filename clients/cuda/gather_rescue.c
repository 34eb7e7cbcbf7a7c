/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engramd did not deliver to a device that can not read the table itself,
 * a thread of this process copies from its own mapping: into a ring that is
 * nobody else's, since a thread of engramd that was stopped may yet write into
 * the one that it was given.
 *
 * A chunk is wanted once all its ids have come; the others of its batch may
 * never be.
 */
#include <string.h>
#include <unistd.h>

#include "engram_stage.h"
#include "gather_handle.h"

#define PART 512 /* rows at a time */

/* The rows of a layer of a generation that this process has mapped, for as long
 * as the lock of the table is held. */
static int find_rows(const struct engram_cuda_table *t,
		     const struct engram_ring_post *post,
		     struct engram_rows *rows)
{
	const engram_table *tables[2] = {t->table, NULL};
	struct engram_table_info info;
	struct engram_layer_info layer;

	/* kernels of before a refresh may still ask for what was before */
	if (atomic_load(&t->next_state) == CUDA_NEXT_RETIRING && t->next)
		tables[1] = t->next->table;
	for (int i = 0; i < 2; i++) {
		if (!tables[i] || engram_table_info(tables[i], &info) ||
		    (uint32_t)info.generation != post->generation)
			continue;
		for (uint32_t l = 0; l < info.num_layers; l++) {
			if (engram_layer_info(tables[i], l, &layer) ||
			    layer.layer_id != post->layer_id)
				continue;
			*rows = layer.rows;
			return 1;
		}
	}
	return 0;
}

static uint32_t chunk_end(const struct engram_ring_post *post, uint32_t chunk)
{
	uint32_t end = (chunk + 1) * post->flag_rows;

	return end < post->num_rows ? end : post->num_rows;
}

static int is_wanted(const struct engram_ring *ring, uint32_t slot,
		     const struct engram_ring_post *post, uint32_t chunk)
{
	uint32_t at = chunk * post->flag_rows, end = chunk_end(post, chunk);

	if (engram_ring_look(ring, slot, chunk, post->seq) !=
	    ENGRAM_RING_PENDING)
		return 0;
	while (at < end && engram_ring_id_seq(ring, slot, at) == post->seq)
		at++;
	return at == end;
}

static void copy(const struct engram_ring *ring, uint32_t slot,
		 const struct engram_ring_post *post, uint32_t chunk,
		 const struct engram_rows *rows)
{
	uint32_t end = chunk_end(post, chunk), n;
	int32_t ids[PART];

	for (uint32_t at = chunk * post->flag_rows; at < end; at += n) {
		n = end - at < PART ? end - at : PART;
		for (uint32_t i = 0; i < n; i++)
			ids[i] = (int32_t)__atomic_load_n(
				&engram_ring_ids(ring, slot)[at + i],
				__ATOMIC_ACQUIRE);
		engram_cpu_stage(rows, ids, n, engram_ring_row(ring, slot, at),
				 ring->row_stride);
	}
}

static void serve(struct engram_cuda_gather *g, uint32_t slot,
		  const struct engram_ring_post *post, uint32_t chunk)
{
	struct engram_rows rows;
	int found;

	pthread_mutex_lock(&g->table->lock);
	found = find_rows(g->table, post, &rows);
	if (found)
		copy(&g->rescue, slot, post, chunk, &rows);
	pthread_mutex_unlock(&g->table->lock);
	engram_ring_answer(&g->rescue, slot, chunk, post->seq,
			   found ? ENGRAM_RING_ROWS : ENGRAM_RING_REFUSED);
}

int cuda_gather_rescue(struct engram_cuda_gather *g)
{
	struct engram_ring_post post;
	int any = 0;

	for (uint32_t slot = 0; slot < g->rescue.shape.slots; slot++) {
		if (engram_ring_read_post(&g->rescue, slot, &post) !=
		    ENGRAM_RING_SOUND)
			continue;
		for (uint32_t i = 0; i < engram_ring_flags(&post); i++)
			if (is_wanted(&g->rescue, slot, &post, i)) {
				serve(g, slot, &post, i);
				any = 1;
			}
	}
	return any;
}

enum engram_status cuda_gather_rescue_open(struct engram_cuda_gather *g,
					   struct engram_error *err)
{
	enum engram_status status;
	int fd;

	if (g->table->placement != ENGRAM_CUDA_HOST)
		return ENGRAM_OK;
	status = engram_ring_create(&g->ring->shape, &g->rescue, &fd, err);
	if (status)
		return status;
	close(fd);
	return cuda_gather_register(&g->rescue, &g->rescue_registered, err);
}

void cuda_gather_rescue_close(struct engram_cuda_gather *g)
{
	cuda_gather_unregister(&g->rescue, g->rescue_registered);
	engram_ring_unmap(&g->rescue);
}
