/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching and using a table: what is mapped, in which order, with which
 * bytes, and what is refused. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engram.h"
#include "fake.h"

struct setting {
	struct fake_table table;
	struct fake fake;
	engram_client *client;
};

static int set_up(void **state)
{
	struct setting *s = calloc(1, sizeof(*s));
	struct engram_open_params params = {.name = "test"};

	assert_non_null(s);
	fake_table_make(&s->table, NULL);
	fake_start(&s->fake, &s->table, fake_serve);
	params.socket = s->fake.path;
	assert_int_equal(engram_open(&params, &s->client), ENGRAM_OK);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct setting *s = *state;

	assert_int_equal(engram_close(s->client), ENGRAM_OK);
	fake_stop(&s->fake);
	fake_table_free(&s->table);
	free(s);
	return 0;
}

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static engram_table *attach(struct setting *s,
			    const struct engram_attach_params *params)
{
	engram_table *table;

	if (engram_attach(s->client, params, &table))
		fail_msg("%s", engram_last_error()->message);
	return table;
}

/* The rows of a rank, straight from the fixture's function. */
static void check_rows(engram_table *table, uint32_t index)
{
	uint8_t record[FAKE_RECORD];
	struct engram_layer_info layer;
	int64_t row;
	uint32_t i;

	assert_int_equal(engram_layer_info(table, index, &layer), ENGRAM_OK);
	assert_int_equal(engram_record_bytes(table), FAKE_RECORD);
	for (row = layer.shard.row_begin; row < layer.shard.row_end; row++) {
		assert_int_equal(
			engram_read_rows(table, index, &row, 1, record),
			ENGRAM_OK);
		for (i = 0; i < FAKE_RECORD; i++)
			assert_int_equal(record[i],
					 fake_byte(layer.layer_id, row, i));
	}
}

static void all_layers(void **state)
{
	struct setting *s = *state;
	unsigned int before = open_descriptors();
	engram_table *t =
		attach(s, &(struct engram_attach_params){.table = "demo"});
	struct engram_layer_info layer;
	struct engram_table_info info;
	char *result;

	/* the mapping holds the memory, no descriptor does; the fake has closed
	 * its own when it answers the next request */
	assert_int_equal(engram_call(s->client, "ping", NULL, &result),
			 ENGRAM_OK);
	engram_free(result);
	assert_int_equal(open_descriptors(), before);
	assert_int_equal(engram_table_info(t, &info), ENGRAM_OK);
	assert_string_equal(info.name, "demo");
	assert_int_equal(info.generation, FAKE_GENERATION);
	assert_true(info.boot_epoch == FAKE_EPOCH);
	assert_string_equal(info.content_id, FAKE_CONTENT);
	assert_int_equal(info.num_layers, FAKE_LAYERS);
	assert_int_equal(info.tp_size, 1);
	assert_int_equal(info.num_cols, FAKE_COLS);
	assert_int_equal(info.local_heads, FAKE_COLS);
	assert_int_equal(info.dim, FAKE_DIM);
	assert_int_equal(info.max_ngram, FAKE_MAX_NGRAM);
	assert_int_equal(info.num_heads, FAKE_HEADS);
	assert_int_equal(info.pad_id, FAKE_PAD_ID);
	assert_int_equal(info.token_map_len, FAKE_VOCAB);
	assert_true(info.mapped_bytes > 0);
	/* as the sidecar answers them: the last first */
	assert_int_equal(engram_layer_info(t, 0, &layer), ENGRAM_OK);
	assert_int_equal(layer.layer_id, fake_layer_ids[1]);
	assert_int_equal(layer.total_rows, s->table.geometry->rows[1]);
	assert_int_equal(layer.shard.row_end, s->table.geometry->rows[1]);
	check_rows(t, 0);
	check_rows(t, 1);
	assert_int_equal(engram_detach(t), ENGRAM_OK);
}

static void layers_in_the_order_asked(void **state)
{
	static const int32_t both[] = {3, 7}, one[] = {7};
	struct setting *s = *state;
	struct engram_layer_info layer;
	struct engram_table_info info;
	engram_table *t;

	t = attach(s, &(struct engram_attach_params){.table = "demo",
						     .layers = both,
						     .num_layers = 2});
	engram_layer_info(t, 0, &layer);
	assert_int_equal(layer.layer_id, 3);
	engram_layer_info(t, 1, &layer);
	assert_int_equal(layer.layer_id, 7);
	check_rows(t, 0);
	check_rows(t, 1);
	engram_detach(t);

	t = attach(s, &(struct engram_attach_params){
			      .table = "demo", .layers = one, .num_layers = 1});
	engram_table_info(t, &info);
	assert_int_equal(info.num_layers, 1);
	check_rows(t, 0);
	assert_int_equal(engram_layer_info(t, 1, &layer), ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message,
			    "table \"demo\": layer index 1, must be below 1");
	engram_detach(t);
}

static void ranks(void **state)
{
	struct setting *s = *state;
	struct engram_layer_info layer;
	struct engram_table_info info;
	int64_t next = 0, below;
	uint8_t record[FAKE_RECORD];
	uint32_t rank;
	engram_table *t;

	/* nine heads over two ranks: five and four */
	for (rank = 0; rank < 2; rank++) {
		t = attach(s, &(struct engram_attach_params){.table = "demo",
							     .tp_rank = rank,
							     .tp_size = 2});
		engram_table_info(t, &info);
		assert_int_equal(info.local_heads, 5);
		assert_int_equal(engram_layer_info(t, 1, &layer), ENGRAM_OK);
		assert_int_equal(layer.shard.head_begin, rank * 5);
		assert_int_equal(layer.shard.head_end, rank ? 9 : 5);
		assert_int_equal(layer.shard.row_begin, next);
		assert_int_equal(layer.rows.row_begin, next);
		check_rows(t, 0);
		check_rows(t, 1);
		next = layer.shard.row_end;
		if (rank) {
			below = layer.shard.row_begin - 1;
			assert_int_equal(
				engram_read_rows(t, 1, &below, 1, record),
				ENGRAM_EINVAL);
		}
		engram_detach(t);
	}
	assert_int_equal(next, s->table.geometry->rows[0]);
}

static void bad_parameters(void **state)
{
	static const int32_t twice[] = {3, 3};
	static const struct {
		struct engram_attach_params params;
		enum engram_status status;
		const char *message;
	} cases[] = {
		{{.table = NULL},
		 ENGRAM_EINVAL,
		 "table: \"\" is no table name"},
		{{.table = "a/b"},
		 ENGRAM_EINVAL,
		 "table: \"a/b\" is no table name"},
		{{.table = "demo", .tp_rank = 2, .tp_size = 2},
		 ENGRAM_EINVAL,
		 "tp_rank: 2 is not below tp_size, 2"},
		{{.table = "demo", .tp_rank = 1},
		 ENGRAM_EINVAL,
		 "tp_rank: 1 is not below tp_size, 0"},
		{{.table = "demo", .layers = twice, .num_layers = 2},
		 ENGRAM_EINVAL,
		 "layers: 3 is named twice"},
		{{.table = "demo", .num_layers = 2},
		 ENGRAM_EINVAL,
		 "num_layers: 2 with no list of layers; at most 64"},
		{{.table = "x"}, ENGRAM_ENOTFOUND, "no table \"x\""},
	};
	struct setting *s = *state;
	engram_table *t;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(engram_attach(s->client, &cases[i].params, &t),
				 cases[i].status);
		assert_null(t);
		assert_string_equal(engram_last_error()->message,
				    cases[i].message);
	}
	/* the last came over the wire, with all its fields */
	assert_string_equal(engram_last_error()->fix, "do better");
	assert_string_equal(engram_last_error()->path, "table");
	assert_int_equal(engram_last_error()->needed, 7);
	assert_int_equal(engram_last_error()->available, 3);
}

static void close_needs_detach(void **state)
{
	struct setting *s = *state;
	engram_table *t =
		attach(s, &(struct engram_attach_params){.table = "demo"});
	char *result;

	assert_int_equal(engram_close(s->client), ENGRAM_EBUSY);
	assert_string_equal(engram_last_error()->message,
			    "1 tables of this client are attached");
	assert_int_equal(engram_detach(t), ENGRAM_OK);
	/* an answer to a later request: the detach has been seen */
	assert_int_equal(engram_call(s->client, "ping", NULL, &result),
			 ENGRAM_OK);
	engram_free(result);
	pthread_mutex_lock(&s->fake.lock);
	assert_int_equal(s->fake.leases, 0);
	assert_int_equal(s->fake.detached, 1);
	pthread_mutex_unlock(&s->fake.lock);
}

/* ---- hash and lookup ---- */

#define TOKENS 6

static const int32_t tokens[TOKENS] = {4, 8, 15, 16, 23, 42};
static const int64_t positions[TOKENS] = {0, 1, 2, 3, 4, 5};
static const int32_t starts[2] = {0, TOKENS};

static struct engram_hash_batch batch(void)
{
	return (struct engram_hash_batch){
		.num_tokens = TOKENS,
		.input_ids = tokens,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};
}

/* The formula, written out for one request without gaps. */
static int32_t expected_id(const struct fake_table *t, int layer, int token,
			   int col)
{
	int ngram = col / FAKE_HEADS + 2, k;
	const struct engram_geometry *g = t->geometry;
	int64_t rolling = 0, id;

	for (k = 0; k < ngram; k++) {
		id = token - k < 0 ? FAKE_PAD_ID
				   : t->token_map[tokens[token - k]];
		rolling ^= id * g->multipliers[layer * FAKE_MAX_NGRAM + k];
	}
	return (int32_t)(rolling % g->primes[layer * FAKE_COLS + col] +
			 g->offsets[layer * FAKE_COLS + col]);
}

static void hash(void **state)
{
	static const int32_t order[] = {3, 7};
	struct setting *s = *state;
	struct engram_hash_batch b = batch();
	int32_t ids[TOKENS * FAKE_LAYERS * FAKE_COLS];
	int32_t again[TOKENS * FAKE_LAYERS * FAKE_COLS];
	struct engram_hash_params params;
	int token, layer, col, i = 0;
	engram_table *t;

	t = attach(s, &(struct engram_attach_params){.table = "demo",
						     .layers = order,
						     .num_layers = 2});
	assert_int_equal(engram_hash(t, &b, ids), ENGRAM_OK);
	for (token = 0; token < TOKENS; token++)
		for (layer = 0; layer < FAKE_LAYERS; layer++)
			for (col = 0; col < FAKE_COLS; col++)
				assert_int_equal(ids[i++],
						 expected_id(&s->table, layer,
							     token, col));
	/* the kernels by hand, on the same parameters */
	assert_int_equal(engram_hash_params(t, &params), ENGRAM_OK);
	assert_int_equal(engram_cpu_hash(&params, &b, again, NULL), ENGRAM_OK);
	assert_memory_equal(ids, again, sizeof(ids));
	engram_detach(t);
}

static void hash_with_slots(void **state)
{
	struct setting *s = *state;
	struct engram_hash_batch b = batch();
	int32_t ids[TOKENS * FAKE_LAYERS * FAKE_COLS], slots[16];
	static const int64_t mapping[TOKENS] = {3, 4, 5, -1, 7, 8};
	static const int32_t block_table[] = {0};
	engram_table *t =
		attach(s, &(struct engram_attach_params){.table = "demo"});
	int i;

	memset(slots, 0x55, sizeof(slots));
	b.slot_cache = slots;
	b.num_slots = 16;
	b.slot_mapping = mapping;
	b.slot_stride = 1;
	b.block_table = block_table;
	b.num_block_rows = 1;
	b.max_blocks = 1;
	b.block_size = 16;
	b.block_row_stride = 1;
	b.block_col_stride = 1;
	assert_int_equal(engram_hash(t, &b, ids), ENGRAM_OK);
	for (i = 0; i < TOKENS; i++)
		if (mapping[i] >= 0)
			assert_int_equal(slots[mapping[i]],
					 s->table.token_map[tokens[i]]);
	assert_int_equal(slots[6], 0x55555555);
	engram_detach(t);
}

static void hash_refuses(void **state)
{
	static const int32_t wrong[TOKENS] = {4, 8, FAKE_VOCAB, 16, 23, 42};
	struct setting *s = *state;
	struct engram_hash_batch b = batch();
	int32_t ids[TOKENS * FAKE_LAYERS * FAKE_COLS];
	engram_table *t =
		attach(s, &(struct engram_attach_params){.table = "demo"});

	b.input_ids = wrong;
	assert_int_equal(engram_hash(t, &b, ids), ENGRAM_EINVAL);
	assert_non_null(strstr(engram_last_error()->message, "50"));
	engram_detach(t);
}

/* code * 2^(scale - 127) in bf16, by way of doubles. */
static uint16_t expected_bf16(int32_t layer_id, int64_t row, uint32_t i)
{
	uint8_t code = fake_byte(layer_id, row, i);
	int scale = fake_byte(layer_id, row, FAKE_DIM + i / FAKE_BLOCK) - 127;
	int exponent = code >> 3 & 15, mantissa = code & 7;
	double value;
	float rounded;
	uint32_t bits;

	value = exponent ? (8 + mantissa) * 0x1p-10 * (double)(1 << exponent)
			 : mantissa * 0x1p-9;
	for (; scale > 0; scale--)
		value *= 2;
	for (; scale < 0; scale++)
		value /= 2;
	rounded = (float)(code & 128 ? -value : value);
	memcpy(&bits, &rounded, sizeof(bits));
	/* three mantissa bits: nothing is ever rounded */
	assert_int_equal(bits & 0xffff, 0);
	return (uint16_t)(bits >> 16);
}

static int is_fp8_nan(uint8_t code)
{
	return (code & 0x7f) == 0x7f;
}

static void check_lookup(struct setting *s, uint32_t rank, uint32_t size)
{
	/* below, first, last and above of what is there; -1 */
	int32_t ids[2][FAKE_COLS], id;
	static uint16_t out[2 * FAKE_COLS * FAKE_DIM];
	struct engram_layer_info layer;
	struct engram_table_info info;
	uint64_t misses = 100, expected = 100;
	const uint16_t *row = out;
	uint32_t token, head, i;
	engram_table *t;

	t = attach(s, &(struct engram_attach_params){.table = "demo",
						     .tp_rank = rank,
						     .tp_size = size});
	engram_table_info(t, &info);
	engram_layer_info(t, 1, &layer);
	for (head = 0; head < FAKE_COLS; head++) {
		ids[0][head] = (int32_t)(layer.shard.row_begin + head);
		ids[1][head] = (int32_t)(layer.shard.row_end - 1 + head % 2);
	}
	ids[0][FAKE_COLS - 2] = -1;
	memset(out, 0x77, sizeof(out));
	assert_int_equal(
		engram_lookup(t, 1, ids[0], FAKE_COLS, 1, 2, out, &misses),
		ENGRAM_OK);
	for (token = 0; token < 2; token++) {
		for (head = 0; head < info.local_heads; head++) {
			if (layer.shard.head_begin + head >= FAKE_COLS) {
				for (i = 0; i < FAKE_DIM; i++)
					assert_int_equal(*row++, 0);
				continue;
			}
			id = ids[token][layer.shard.head_begin + head];
			if (id < layer.shard.row_begin ||
			    id >= layer.shard.row_end)
				expected++;
			for (i = 0; i < FAKE_DIM; i++, row++) {
				if (id < layer.shard.row_begin ||
				    id >= layer.shard.row_end)
					assert_int_equal(*row, 0);
				else if (is_fp8_nan(fake_byte(3, id, i)))
					assert_true((*row & 0x7fff) > 0x7f80);
				else
					assert_int_equal(
						*row, expected_bf16(3, id, i));
			}
		}
	}
	assert_int_equal(misses, expected);
	assert_int_equal(engram_lookup(t, 1, NULL, 0, 0, 0, NULL, NULL),
			 ENGRAM_OK);
	engram_detach(t);
}

static void lookup(void **state)
{
	check_lookup(*state, 0, 1);
	check_lookup(*state, 0, 2);
	check_lookup(*state, 1, 2);
}

static void poll_control_page(void **state)
{
	struct setting *s = *state;
	struct engram_control_table *slots = s->table.page->tables;
	engram_table *t =
		attach(s, &(struct engram_attach_params){.table = "demo"});

	assert_int_equal(engram_table_poll(t), FAKE_GENERATION);
	engram_control_store64(&slots[2].generation, 6);
	assert_int_equal(engram_table_poll(t), 6);
	/* forgotten, and back in another slot */
	memset(slots[2].name, 0, sizeof(slots[2].name));
	assert_int_equal(engram_table_poll(t), 0);
	strcpy(slots[0].name, "demo");
	engram_control_store64(&slots[0].generation, 1);
	assert_int_equal(engram_table_poll(t), 1);
	/* another process now: its generation 1 is not ours */
	engram_control_store64(&s->table.page->boot_epoch, FAKE_EPOCH + 1);
	assert_int_equal(engram_table_poll(t), 0);
	engram_control_store64(&s->table.page->boot_epoch, 0);
	assert_int_equal(engram_table_poll(t), 0);
	engram_detach(t);
}

static void without_token_map(void **state)
{
	const struct fake_twist twist = {.no_token_map = 1,
					 .layout = ENGRAM_SPLIT};
	struct engram_open_params params = {.name = "test"};
	struct engram_hash_params hash_params;
	struct fake_table table;
	engram_client *client;
	engram_table *t;
	struct fake fake;

	(void)state;
	fake_table_make(&table, &twist);
	fake_start(&fake, &table, fake_serve);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
	assert_int_equal(
		engram_attach(client,
			      &(struct engram_attach_params){.table = "demo"},
			      &t),
		ENGRAM_OK);
	check_rows(t, 0); /* the split layout has the same bytes */
	check_rows(t, 1);
	assert_int_equal(engram_hash_params(t, &hash_params),
			 ENGRAM_ENOTOKENMAP);
	assert_string_equal(engram_last_error()->message,
			    "table \"demo\": it was loaded without a token "
			    "map, and can not hash");
	engram_detach(t);
	engram_close(client);
	fake_stop(&fake);
	fake_table_free(&table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
		TEST(all_layers),
		TEST(layers_in_the_order_asked),
		TEST(ranks),
		TEST(bad_parameters),
		TEST(close_needs_detach),
		TEST(hash),
		TEST(hash_with_slots),
		TEST(hash_refuses),
		TEST(lookup),
		TEST(poll_control_page),
		cmocka_unit_test(without_token_map),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
