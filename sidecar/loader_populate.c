/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "loader_worker.h"

static enum engram_status populate(struct loader_shared *shared,
				   const struct loader_chunk *chunk,
				   struct engram_error *err)
{
	struct loader_target *target = &shared->targets[chunk->layer];
	enum engram_status status = loader_memory_have_rows(
		&target->memory, chunk->chunk * target->plan.chunk_rows,
		loader_plan_chunk_end(&target->plan, chunk->chunk), false,
		&shared->stop, err);

	if (status)
		engram_error_context(err, "layer %" PRId32, target->layer_id);
	return status;
}

void *loader_populate(void *arg)
{
	struct loader_shared *shared = arg;
	enum engram_status status = ENGRAM_OK;
	struct loader_chunk chunk;
	struct engram_error err;

	while (!status && loader_queue_ahead(&shared->queue, &chunk))
		status = populate(shared, &chunk, &err);
	if (status)
		loader_fail(shared, status, &err);
	return NULL;
}
