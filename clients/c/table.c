/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "client.h"

/*
 * The hot calls: no lock, no allocation, no system call.  The kernels report
 * into the thread's error only when they fail.
 */

static const struct engram_segment_header *first_header(
	const struct engram_table *t)
{
	return t->layers[0].map.header;
}

static enum engram_status check_layer(const struct engram_table *t,
				      uint32_t layer, struct engram_error *err)
{
	enum engram_status status = fork_check(t->fork_generation, err);

	if (status)
		return status;
	if (layer < t->num_layers)
		return ENGRAM_OK;
	return engram_error_set(err, ENGRAM_EINVAL,
				"table \"%s\": layer index %" PRIu32 ", must "
				"be below %" PRIu32,
				t->name, layer, t->num_layers);
}

enum engram_status engram_table_info(const engram_table *table,
				     struct engram_table_info *out)
{
	const struct engram_segment_header *h;
	uint32_t i;

	if (fork_check(table->fork_generation, client_error()))
		return ENGRAM_EINVAL;
	h = first_header(table);
	*out = (struct engram_table_info){
		.name = table->name,
		.generation = table->generation,
		.boot_epoch = table->boot_epoch,
		.num_layers = table->num_layers,
		.tp_rank = table->tp_rank,
		.tp_size = table->tp_size,
		.num_cols = h->num_cols,
		.local_heads = table->layers[0].shard.local_heads,
		.dim = h->dim,
		.max_ngram = h->max_ngram,
		.num_heads = h->num_heads,
		.pad_id = h->pad_id,
		.token_map_len = (int64_t)h->token_map.count,
		.node = table->node,
	};
	memcpy(out->content_id, table->content_id, sizeof(out->content_id));
	for (i = 0; i < table->num_layers; i++) {
		const struct engram_segment_map *map = &table->layers[i].map;

		out->mapped_bytes += map->header_bytes +
				     map->data_map_bytes[0] +
				     map->data_map_bytes[1];
	}
	return ENGRAM_OK;
}

uint64_t engram_table_poll(const engram_table *table)
{
	const struct engram_control_page *page = table->control;
	uint64_t generation;

	if (fork_check(table->fork_generation, client_error()))
		return 0;
	/* Looked up each time: a table that was forgotten and comes back may
	 * have another slot. */
	generation = engram_control_generation(page, table->name);
	/* After the generation: a restarted sidecar takes the page over, sets
	 * the epoch to 0 first, and counts its generations from 1 again. */
	if (engram_control_load64(&page->boot_epoch) != table->boot_epoch)
		return 0;
	return generation;
}

static void list_mappings(const struct engram_segment_map *map,
			  struct engram_layer_info *out)
{
	uint32_t i;

	out->num_mappings = 0;
	memset(out->mapping, 0, sizeof(out->mapping));
	for (i = 0; i < 2 && map->data_map[i]; i++)
		out->mapping[out->num_mappings++] = (struct engram_mapping){
			.address = map->data_map[i],
			.bytes = map->data_map_bytes[i],
		};
}

enum engram_status engram_layer_info(const engram_table *table, uint32_t layer,
				     struct engram_layer_info *out)
{
	enum engram_status status = check_layer(table, layer, client_error());
	const struct table_layer *l;

	if (status)
		return status;
	l = &table->layers[layer];
	out->layer_id = l->layer_id;
	out->shard = l->shard;
	out->rows = l->rows;
	out->total_rows = l->map.header->rows;
	list_mappings(&l->map, out);
	return ENGRAM_OK;
}

enum engram_status engram_protect(engram_table *table)
{
	struct engram_error *err = client_error();
	enum engram_status status = fork_check(table->fork_generation, err);
	uint32_t i;

	for (i = 0; i < table->num_layers && !status; i++) {
		status = engram_segment_protect(&table->layers[i].map, err);
		if (status)
			engram_error_context(err, "table \"%s\", layer %d",
					     table->name,
					     table->layers[i].layer_id);
	}
	return status;
}

enum engram_status engram_hash_params(const engram_table *table,
				      struct engram_hash_params *out)
{
	struct engram_error *err = client_error();
	const struct engram_segment_header *h;

	if (fork_check(table->fork_generation, err))
		return ENGRAM_EINVAL;
	h = first_header(table);
	if (!h->token_map.count) {
		engram_error_set(err, ENGRAM_ENOTOKENMAP,
				 "table \"%s\": it was loaded without a token "
				 "map, and can not hash",
				 table->name);
		engram_error_fix(err, "put tokenizer.json or "
				      "engram_token_map.json into the "
				      "checkpoint directory and load it again");
		return ENGRAM_ENOTOKENMAP;
	}
	*out = (struct engram_hash_params){
		.num_layers = table->num_layers,
		.min_ngram = h->min_ngram,
		.max_ngram = h->max_ngram,
		.num_heads = h->num_heads,
		.multipliers = table->multipliers,
		.primes = table->primes,
		.offsets = table->offsets,
		.token_map = engram_segment_at(h, &h->token_map),
		.token_map_len = (int64_t)h->token_map.count,
		.pad_id = h->pad_id,
		.num_cuts = h->num_cuts,
	};
	_Static_assert(sizeof(out->cut_ids) == sizeof(h->cut_ids),
		       "as many in the segment as in the parameters");
	memcpy(out->cut_ids, h->cut_ids, sizeof(out->cut_ids));
	return ENGRAM_OK;
}

enum engram_status engram_hash(const engram_table *table,
			       const struct engram_hash_batch *batch,
			       int32_t *out)
{
	struct engram_hash_params params;
	enum engram_status status;

	status = engram_hash_params(table, &params);
	if (!status)
		status = table_check_parked(table, client_error());
	if (!status && batch->slot_cache && batch->slot_mapping)
		status = engram_cpu_write_slots(&params, batch, client_error());
	if (!status)
		status = engram_cpu_hash(&params, batch, out, client_error());
	return status;
}

enum engram_status engram_lookup(const engram_table *table, uint32_t layer,
				 const int32_t *ids, int64_t ids_token_stride,
				 int64_t ids_head_stride, int64_t num_tokens,
				 uint16_t *out, uint64_t *misses)
{
	enum engram_status status = check_layer(table, layer, client_error());
	const struct table_layer *l;
	struct engram_lookup_args args;

	if (!status)
		status = table_check_parked(table, client_error());
	if (status)
		return status;
	l = &table->layers[layer];
	args = (struct engram_lookup_args){
		.ids = ids,
		.ids_token_stride = ids_token_stride,
		.ids_head_stride = ids_head_stride,
		.num_tokens = num_tokens,
		.head_begin = l->shard.head_begin,
		.local_heads = l->shard.local_heads,
		.total_heads = l->map.header->num_cols,
		.misses = misses,
	};
	return engram_cpu_lookup(&l->rows, &args, out, client_error());
}

enum engram_status engram_read_rows(const engram_table *table, uint32_t layer,
				    const int64_t *rows, uint64_t count,
				    void *out)
{
	struct engram_error *err = client_error();
	enum engram_status status = check_layer(table, layer, err);
	const struct engram_rows *r;
	size_t record, codes;
	unsigned char *to = out;
	uint64_t i;
	int64_t row;

	if (!status)
		status = table_check_parked(table, err);
	if (status)
		return status;
	r = &table->layers[layer].rows;
	record = engram_segment_record_bytes(first_header(table));
	codes = (size_t)r->dim * (r->dtype == ENGRAM_BF16 ? 2 : 1);
	for (i = 0; i < count; i++) {
		if (rows[i] >= r->row_begin && rows[i] < r->row_end)
			continue;
		return engram_error_set(err, ENGRAM_EINVAL,
					"table \"%s\", layer %d: row %" PRId64
					" is not in [%" PRId64 ", %" PRId64 ")",
					table->name,
					table->layers[layer].layer_id, rows[i],
					r->row_begin, r->row_end);
	}
	for (i = 0; i < count; i++, to += record) {
		row = rows[i] - r->row_begin;
		memcpy(to, (const char *)r->codes + row * r->code_stride_bytes,
		       codes);
		if (record > codes)
			memcpy(to + codes,
			       (const char *)r->scales +
				       row * r->scale_stride_bytes,
			       record - codes);
	}
	return ENGRAM_OK;
}

uint64_t engram_record_bytes(const engram_table *table)
{
	if (fork_check(table->fork_generation, client_error()))
		return 0;
	return engram_segment_record_bytes(first_header(table));
}

enum engram_status engram_gate(const struct engram_gate_args *args,
			       uint16_t *out)
{
	return engram_cpu_gate(args, out, client_error());
}

enum engram_status engram_sp_rows(const struct engram_sp_rows_args *args,
				  uint16_t *out)
{
	return engram_cpu_sp_rows(args, out, client_error());
}
