/* SPDX-License-Identifier: Apache-2.0 */
/* A replay, step by step, on the CPU backend. */
#include <stdio.h>
#include <string.h>

#include "gate_close.h"

#include "graph_case.h"

static int failed(enum engram_status status, const char *what,
		  const struct engram_error *err, char *why)
{
	if (status)
		snprintf(why, WHY, "CPU %s: %s", what, err->message);
	return status != ENGRAM_OK;
}

static int same(const void *got, const void *want, size_t bytes, size_t item,
		const char *what, char *why)
{
	const uint8_t *a = got, *b = want;

	for (size_t i = 0; i < bytes; i++) {
		if (a[i] == b[i])
			continue;
		snprintf(why, WHY, "%s: byte %zu of %zu is 0x%02x, not 0x%02x",
			 what, i % item, i / item, a[i], b[i]);
		return 0;
	}
	return 1;
}

/* Ids out of range become the pad id, which the GPU takes them for. */
static void accept(struct inputs *in, struct state *state)
{
	for (int t = 0; t < TOKENS; t++) {
		if (in->ids[t] >= 0 && in->ids[t] < VOCAB)
			continue;
		in->ids[t] = PAD_RAW;
		state->rejects += !in->dead[t] && t < in->bounds[REQUESTS];
	}
}

static int check_hash(const struct addresses *at, const struct results *got,
		      char *why)
{
	struct layer_pointers pointers;
	struct engram_hash_params params = hash_params(at, &pointers);
	struct engram_hash_batch batch = hash_batch(at);
	int32_t live = at->inputs->bounds[REQUESTS];
	struct engram_error err;

	if (failed(engram_cpu_write_slots(&params, &batch, &err), "slots", &err,
		   why) ||
	    failed(engram_cpu_hash(&params, &batch, at->results->ids[0][0],
				   &err),
		   "hash", &err, why))
		return 0;
	if (!same(got->ids, at->results->ids,
		  (size_t)live * sizeof(got->ids[0]), sizeof(got->ids[0]),
		  "ids of token", why))
		return 0;
	/* those of padding mean nothing, but rows are read by them */
	memcpy(at->results->ids, got->ids, sizeof(got->ids));
	return 1;
}

static int check_gate(const struct addresses *at, int layer,
		      const uint16_t *got, const struct inputs *before,
		      char *why)
{
	static uint16_t want[TOKENS * HC * GATE_DIM];
	struct engram_gate_args args = gate_args(at, layer);
	const uint16_t *hidden = before->hidden[layer][0][0];
	struct engram_error err;

	if (failed(engram_cpu_gate(&args, want, &err), "gate", &err, why))
		return 0;
	for (int i = 0; i < TOKENS * HC * GATE_DIM; i++) {
		if (gate_close(got[i], want[i], hidden[i]))
			continue;
		snprintf(why, WHY,
			 "gate of layer %d: element %d is %g, not %g "
			 "(hidden %g)",
			 layer, i, gate_widen(got[i]), gate_widen(want[i]),
			 gate_widen(hidden[i]));
		return 0;
	}
	return 1;
}

static int check_layer(const struct addresses *at, int layer,
		       const struct table *table, const struct results *got,
		       char *why)
{
	struct engram_lookup_args args = lookup_args(at, layer);
	struct engram_error err;

	return !failed(engram_cpu_lookup(&table->rows[layer], &args,
					 at->results->rows[layer][0][0], &err),
		       "lookup", &err, why) &&
	       same(got->rows[layer], at->results->rows[layer],
		    sizeof(got->rows[layer]), DIM * 2,
		    layer ? "layer 1, row" : "layer 0, row", why);
}

int check_replay(const struct constants *constants, const struct table *table,
		 const struct inputs *before, struct state *state,
		 const struct inputs *hidden, const struct results *got,
		 const struct state *after, char *why)
{
	static struct inputs inputs;
	static struct results results;
	const struct addresses at = {
		.constants = (struct constants *)(uintptr_t)constants,
		.inputs = &inputs,
		.state = state,
		.results = &results,
	};

	inputs = *before;
	accept(&inputs, state);
	if (!check_hash(&at, got, why))
		return -1;
	for (int layer = 0; layer < LAYERS; layer++)
		if (!check_layer(&at, layer, table, got, why))
			return -1;
	if (!check_gate(&at, 0, got->out[0][0], before, why) ||
	    !check_gate(&at, 1, hidden->hidden[1][0][0], before, why))
		return -1;
	if (!same(after->cache, state->cache, sizeof(state->cache),
		  sizeof(state->cache[0]), "slot", why))
		return -1;
	if (after->rejects == state->rejects &&
	    after->misses[0] == state->misses[0] &&
	    after->misses[1] == state->misses[1])
		return 0;
	snprintf(why, WHY,
		 "%llu rejects, %llu and %llu misses, not %llu, %llu "
		 "and %llu",
		 (unsigned long long)after->rejects,
		 (unsigned long long)after->misses[0],
		 (unsigned long long)after->misses[1],
		 (unsigned long long)state->rejects,
		 (unsigned long long)state->misses[0],
		 (unsigned long long)state->misses[1]);
	return -1;
}
