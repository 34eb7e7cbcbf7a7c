/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"

/* An attached table and what the three commands need to know of it. */
struct use {
	engram_table *table;
	struct engram_table_info info;
	struct engram_layer_info layer; /* the first attached */
};

static enum cli_exit use_begin(struct cli *cli, int64_t layer_id,
			       struct use *use)
{
	enum engram_status status;

	memset(use, 0, sizeof(*use));
	status = cli_attach(cli, cli->args[0], layer_id, &use->table);
	if (!status)
		status = engram_table_info(use->table, &use->info);
	if (!status)
		status = engram_layer_info(use->table, 0, &use->layer);
	return status ? cli_fail_last(cli) : CLI_OK;
}

static enum cli_exit no_memory(const struct cli *cli)
{
	struct engram_error err;

	engram_error_set(&err, ENGRAM_ENOMEM, "no memory for the result");
	return cli_fail(cli, &err);
}

static json_t *head_json(const struct use *use)
{
	return json_pack("{s:s, s:I, s:s}", "table", use->info.name,
			 "generation", (json_int_t)use->info.generation,
			 "content_id", use->info.content_id);
}

/* ---- hash ---- */

/* One request: the tokens at positions 0.. of a text. */
static enum engram_status hash_tokens(const struct use *use,
				      const int64_t *tokens, size_t count,
				      int32_t *ids)
{
	int32_t *input = calloc(count, sizeof(*input));
	int64_t *positions = calloc(count, sizeof(*positions));
	int32_t starts[2] = {0, (int32_t)count};
	struct engram_hash_batch batch = {
		.num_tokens = (int64_t)count,
		.input_ids = input,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};
	enum engram_status status = ENGRAM_ENOMEM;
	size_t i;

	if (input && positions) {
		for (i = 0; i < count; i++) {
			input[i] = (int32_t)tokens[i];
			positions[i] = (int64_t)i;
		}
		status = engram_hash(use->table, &batch, ids);
	}
	free(input);
	free(positions);
	return status;
}

static const int32_t *ids_at(const struct use *use, const int32_t *ids,
			     size_t token, uint32_t layer)
{
	return ids +
	       (token * use->info.num_layers + layer) * use->info.num_cols;
}

static json_t *layer_json(const struct use *use, const int32_t *ids,
			  size_t count, uint32_t layer)
{
	json_t *rows = json_array(), *row;
	struct engram_layer_info info;
	uint32_t c;
	size_t i;

	engram_layer_info(use->table, layer, &info);
	for (i = 0; i < count; i++) {
		row = json_array();
		for (c = 0; c < use->info.num_cols; c++)
			json_array_append_new(
				row,
				json_integer(ids_at(use, ids, i, layer)[c]));
		json_array_append_new(rows, row);
	}
	return json_pack("{s:i, s:o}", "layer_id", (int)info.layer_id, "ids",
			 rows);
}

static enum cli_exit hash_json(const struct use *use, const int64_t *tokens,
			       const int32_t *ids, size_t count)
{
	json_t *out = head_json(use), *list = json_array(),
	       *layers = json_array();
	uint32_t layer;
	size_t i;

	for (i = 0; i < count; i++)
		json_array_append_new(list, json_integer(tokens[i]));
	for (layer = 0; layer < use->info.num_layers; layer++)
		json_array_append_new(layers,
				      layer_json(use, ids, count, layer));
	json_object_set_new(out, "tokens", list);
	json_object_set_new(out, "layers", layers);
	return cli_print_json(out);
}

static void hash_text(const struct use *use, const int64_t *tokens,
		      const int32_t *ids, size_t count)
{
	struct engram_layer_info info;
	uint32_t layer, c;
	size_t i;

	for (layer = 0; layer < use->info.num_layers; layer++) {
		engram_layer_info(use->table, layer, &info);
		printf("layer %d\n", info.layer_id);
		for (i = 0; i < count; i++) {
			printf("  token %lld:", (long long)tokens[i]);
			for (c = 0; c < use->info.num_cols; c++)
				printf(" %d", ids_at(use, ids, i, layer)[c]);
			putchar('\n');
		}
	}
}

static enum cli_exit run_hash(struct cli *cli)
{
	enum cli_exit code = CLI_USAGE;
	int64_t *tokens = NULL, layer;
	int32_t *ids = NULL;
	struct use use;
	size_t count;

	if (!cli_integer(cli, "--layer", 0, INT32_MAX, -1, &layer) ||
	    !cli_integers(cli, "--tokens", 0, INT32_MAX, &tokens, &count))
		return CLI_USAGE;
	code = use_begin(cli, layer, &use);
	if (!code) {
		ids = calloc(count * use.info.num_layers,
			     use.info.num_cols * sizeof(*ids));
		if (!ids)
			code = no_memory(cli);
	}
	if (!code && hash_tokens(&use, tokens, count, ids))
		code = cli_fail_last(cli);
	if (!code && cli->json)
		code = hash_json(&use, tokens, ids, count);
	else if (!code)
		hash_text(&use, tokens, ids, count);
	engram_detach(use.table);
	free(tokens);
	free(ids);
	return code;
}

/* ---- rows ---- */

static void hex_of(char *out, const unsigned char *bytes, size_t count)
{
	static const char digits[] = "0123456789abcdef";
	size_t i;

	for (i = 0; i < count; i++) {
		*out++ = digits[bytes[i] >> 4];
		*out++ = digits[bytes[i] & 15];
	}
	*out = '\0';
}

static json_t *row_json(int64_t row, const char *codes, const char *scales)
{
	return json_pack("{s:I, s:s, s:s}", "row", (json_int_t)row, "codes",
			 codes, "scales", scales);
}

static enum cli_exit print_rows(struct cli *cli, const struct use *use,
				const int64_t *ids, size_t count)
{
	size_t record = engram_record_bytes(use->table), i;
	size_t codes = use->layer.rows.dim *
		       (use->layer.rows.dtype == 2 ? (size_t)2 : 1);
	unsigned char *bytes = calloc(count, record);
	char *hex = calloc(2, record + 1);
	char *hex_scales = hex ? hex + 2 * codes + 1 : NULL;
	enum cli_exit code = CLI_OK;
	json_t *list, *out;

	if (!bytes || !hex) {
		code = no_memory(cli);
	} else if (engram_read_rows(use->table, 0, ids, count, bytes)) {
		code = cli_fail_last(cli);
	} else {
		list = json_array();
		for (i = 0; i < count; i++) {
			hex_of(hex, bytes + i * record, codes);
			hex_of(hex_scales, bytes + i * record + codes,
			       record - codes);
			if (cli->json)
				json_array_append_new(
					list,
					row_json(ids[i], hex, hex_scales));
			else
				printf("row %lld\n  codes  %s\n  scales %s\n",
				       (long long)ids[i], hex,
				       *hex_scales ? hex_scales : "-");
		}
		out = head_json(use);
		json_object_set_new(out, "layer_id",
				    json_integer(use->layer.layer_id));
		json_object_set_new(out, "rows", list);
		if (cli->json)
			code = cli_print_json(json_incref(out));
		json_decref(out);
	}
	free(bytes);
	free(hex);
	return code;
}

/* ---- lookup ---- */

static double value_of(uint16_t bf16)
{
	uint32_t bits = (uint32_t)bf16 << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return (double)value;
}

static json_t *lookup_row_json(int64_t id, bool found, const uint16_t *row,
			       uint32_t dim)
{
	json_t *bits = json_array(), *values = json_array();
	uint32_t i;

	for (i = 0; i < dim; i++) {
		json_array_append_new(bits, json_sprintf("%04x", row[i]));
		/* JSON has no NaN and no infinity */
		json_array_append_new(values,
				      isfinite(value_of(row[i]))
					      ? json_real(value_of(row[i]))
					      : json_null());
	}
	return json_pack("{s:I, s:b, s:o, s:o}", "row", (json_int_t)id, "found",
			 (int)found, "bits", bits, "values", values);
}

static void lookup_row_text(int64_t id, bool found, const uint16_t *row,
			    uint32_t dim)
{
	uint32_t i;

	printf("row %lld%s\n  bits  ", (long long)id,
	       found ? "" : " (no such row: zeros)");
	for (i = 0; i < dim; i++)
		printf(" %04x", row[i]);
	printf("\n  values");
	for (i = 0; i < dim; i++)
		printf(" %g", value_of(row[i]));
	putchar('\n');
}

static enum cli_exit print_lookup(struct cli *cli, const struct use *use,
				  const int64_t *ids, size_t count)
{
	const struct engram_rows *rows = &use->layer.rows;
	uint16_t *row = calloc(rows->dim, sizeof(*row));
	json_t *list = json_array(), *out;
	uint64_t misses = 0, before;
	enum cli_exit code = CLI_OK;
	struct engram_lookup_args args = {
		.num_tokens = 1,
		.local_heads = 1,
		.total_heads = 1,
		.misses = &misses,
	};
	struct engram_error err;
	int32_t id;
	size_t i;

	if (!row) {
		json_decref(list);
		return no_memory(cli);
	}
	for (i = 0; i < count && !code; i++) {
		id = (int32_t)ids[i];
		args.ids = &id;
		before = misses;
		if (engram_cpu_lookup(rows, &args, row, &err))
			code = cli_fail(cli, &err);
		else if (cli->json)
			json_array_append_new(
				list, lookup_row_json(id, misses == before, row,
						      rows->dim));
		else
			lookup_row_text(id, misses == before, row, rows->dim);
	}
	free(row);
	if (code || !cli->json) {
		json_decref(list);
		return code;
	}
	out = head_json(use);
	json_object_set_new(out, "layer_id", json_integer(use->layer.layer_id));
	json_object_set_new(out, "misses", json_integer((json_int_t)misses));
	json_object_set_new(out, "rows", list);
	return cli_print_json(out);
}

/* ---- rows and lookup: the same words, another view ---- */

static enum cli_exit run_on_rows(struct cli *cli, int64_t min_id,
				 enum cli_exit (*print)(struct cli *cli,
							const struct use *use,
							const int64_t *ids,
							size_t count))
{
	const char *given;
	enum cli_exit code;
	int64_t *ids, layer;
	struct use use;
	size_t count;

	if (!cli_required(cli, "--layer", &given) ||
	    !cli_integer(cli, "--layer", 0, INT32_MAX, -1, &layer) ||
	    !cli_integers(cli, "--ids", min_id, INT32_MAX, &ids, &count))
		return CLI_USAGE;
	code = use_begin(cli, layer, &use);
	if (!code)
		code = print(cli, &use, ids, count);
	engram_detach(use.table);
	free(ids);
	return code;
}

static enum cli_exit run_rows(struct cli *cli)
{
	return run_on_rows(cli, 0, print_rows);
}

static enum cli_exit run_lookup(struct cli *cli)
{
	return run_on_rows(cli, INT32_MIN, print_lookup);
}

static const struct cli_option hash_options[] = {
	{"--tokens", "IDS", "raw token ids of one text, as 1,2,3"},
	{"--layer", "ID", "this layer only"},
	{0},
};

static const struct cli_option rows_options[] = {
	{"--layer", "ID", "the layer, as the model counts"},
	{"--ids", "IDS", "row numbers, as 1,2,3"},
	{0},
};

const struct cli_command cmd_hash = {
	.name = "hash",
	.usage = "TABLE --tokens IDS [--layer ID]",
	.summary = "show the row numbers of a text's n-grams",
	.min_args = 1,
	.max_args = 1,
	.options = hash_options,
	.run = run_hash,
};

const struct cli_command cmd_rows = {
	.name = "rows",
	.usage = "TABLE --layer ID --ids IDS",
	.summary = "show the stored bytes of rows, in hex",
	.min_args = 1,
	.max_args = 1,
	.options = rows_options,
	.run = run_rows,
};

const struct cli_command cmd_lookup = {
	.name = "lookup",
	.usage = "TABLE --layer ID --ids IDS",
	.summary = "show rows as bf16: bits in hex and values",
	.details = "\nAn id that no row answers gives zeros, as in a model.",
	.min_args = 1,
	.max_args = 1,
	.options = rows_options,
	.run = run_lookup,
};
