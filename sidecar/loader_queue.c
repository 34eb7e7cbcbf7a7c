/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_queue.h"

#include <assert.h>
#include <stdlib.h>

static struct source *source_of(const struct loader_plan *plan, uint64_t chunk,
				const struct sources *sources)
{
	const struct loader_place place = loader_plan_place(
		plan->codes, plan->code_bytes, chunk * plan->chunk_rows);

	return sources_of(sources, place.file);
}

static struct loader_lane *lane_of(struct loader_queue *queue, dev_t device)
{
	struct loader_lane *lane;

	for (lane = queue->lanes; lane < queue->lanes + queue->num_lanes;
	     lane++)
		if (lane->device == device)
			return lane;
	*lane = (struct loader_lane){.device = device};
	queue->num_lanes++;
	return lane;
}

/* How many chunks each lane has, then where they begin, then which they are. */
static void sort_chunks(struct loader_queue *queue,
			const struct loader_plan *const *plans, uint32_t count,
			const struct sources *sources)
{
	struct loader_chunk *next = queue->chunks;
	struct loader_lane *lane;
	uint64_t chunk;
	uint32_t i;

	for (i = 0; i < count; i++)
		for (chunk = 0; chunk < plans[i]->num_chunks; chunk++)
			lane_of(queue,
				source_of(plans[i], chunk, sources)->device)
				->count++;
	for (i = 0; i < queue->num_lanes; i++) {
		lane = &queue->lanes[i];
		lane->chunks = next;
		next += lane->count;
		lane->count = 0;
	}
	for (i = 0; i < count; i++)
		for (chunk = 0; chunk < plans[i]->num_chunks; chunk++) {
			lane = lane_of(
				queue,
				source_of(plans[i], chunk, sources)->device);
			assert(lane->chunks); /* counted above */
			lane->chunks[lane->count++] =
				(struct loader_chunk){i, chunk};
		}
}

enum engram_status loader_queue_init(struct loader_queue *queue,
				     const struct loader_plan *const *plans,
				     uint32_t count,
				     const struct sources *sources,
				     uint64_t most_ahead,
				     struct engram_error *err)
{
	uint64_t chunks = 0;
	uint32_t i;

	*queue = (struct loader_queue){.most_ahead = most_ahead};
	for (i = 0; i < count; i++)
		chunks += plans[i]->num_chunks;
	queue->chunks = calloc(chunks + 1, sizeof(*queue->chunks));
	/* At most one a file. */
	queue->lanes = calloc(sources->count + 1, sizeof(*queue->lanes));
	if (!queue->chunks || !queue->lanes) {
		free(queue->chunks);
		free(queue->lanes);
		engram_error_set(err, ENGRAM_ENOMEM,
				 "no memory to plan a load");
		engram_error_fix(err, "free some memory");
		return ENGRAM_ENOMEM;
	}
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->moved, NULL);
	sort_chunks(queue, plans, count, sources);
	return ENGRAM_OK;
}

void loader_queue_free(struct loader_queue *queue)
{
	pthread_cond_destroy(&queue->moved);
	pthread_mutex_destroy(&queue->lock);
	free(queue->lanes);
	free(queue->chunks);
}

uint64_t loader_queue_count(const struct loader_queue *queue)
{
	uint64_t chunks = 0;
	uint32_t i;

	for (i = 0; i < queue->num_lanes; i++)
		chunks += queue->lanes[i].count;
	return chunks;
}

static uint64_t left(const struct loader_lane *lane)
{
	return lane->count - lane->next;
}

bool loader_queue_take(struct loader_queue *queue, uint32_t lane,
		       struct loader_chunk *out)
{
	struct loader_lane *from = &queue->lanes[lane % queue->num_lanes];
	uint32_t i;
	bool found;

	pthread_mutex_lock(&queue->lock);
	if (!left(from))
		for (i = 0; i < queue->num_lanes; i++)
			if (left(&queue->lanes[i]) > left(from))
				from = &queue->lanes[i];
	found = left(from) != 0;
	if (found)
		*out = from->chunks[from->next++];
	pthread_cond_broadcast(&queue->moved);
	pthread_mutex_unlock(&queue->lock);
	return found;
}

/* The lane whose readers will soonest be without; NULL: all have memory. */
static struct loader_lane *hungriest(const struct loader_queue *queue)
{
	struct loader_lane *lane, *found = NULL;

	for (lane = queue->lanes; lane < queue->lanes + queue->num_lanes;
	     lane++) {
		/* Its reader has it, and sees to it itself. */
		if (lane->ahead < lane->next)
			lane->ahead = lane->next;
		if (lane->ahead == lane->count)
			continue;
		if (!found ||
		    lane->ahead - lane->next < found->ahead - found->next)
			found = lane;
	}
	return found;
}

bool loader_queue_ahead(struct loader_queue *queue, struct loader_chunk *out)
{
	struct loader_lane *lane;

	pthread_mutex_lock(&queue->lock);
	while (!queue->over && (lane = hungriest(queue)) &&
	       lane->ahead - lane->next >= queue->most_ahead)
		pthread_cond_wait(&queue->moved, &queue->lock);
	if (queue->over)
		lane = NULL;
	if (lane)
		*out = lane->chunks[lane->ahead++];
	pthread_mutex_unlock(&queue->lock);
	return lane != NULL;
}

void loader_queue_end(struct loader_queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->over = true;
	pthread_cond_broadcast(&queue->moved);
	pthread_mutex_unlock(&queue->lock);
}
