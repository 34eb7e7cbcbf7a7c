/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"
#include "failpoint.h"

/*
 * What the answer to an attach says of itself is checked against the segments
 * that came with it, and every difference is a refusal: a table that is not
 * what it says gives fluent wrong text.
 */
struct attach {
	const struct engram_attach_params *params;
	struct engram_table *table;
	struct conn_fds fds;
	bool fd_used[ENGRAM_FDS_MAX];
	const struct engram_segment_header *first; /* of the layers answered */
	struct engram_error *err;
};

static enum engram_status bad_answer(struct attach *a, const char *what)
{
	engram_error_set(a->err, ENGRAM_EPROTOCOL, "the answer to attach: %s",
			 what);
	engram_error_fix(a->err, "install engramd and libengram of the same "
				 "release");
	return ENGRAM_EPROTOCOL;
}

static enum engram_status bad_segment(struct attach *a, int32_t layer_id,
				      const char *what)
{
	engram_error_set(a->err, ENGRAM_EDAMAGED, "layer %d: %s", layer_id,
			 what);
	engram_error_fix(a->err, "unload the table and load it again");
	return ENGRAM_EDAMAGED;
}

static enum engram_status check_params(const struct engram_attach_params *p,
				       struct engram_error *err)
{
	uint32_t i, j;

	if (!p || !p->table || !engram_name_valid(p->table)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "table: \"%.80s\" is no table name",
				 p && p->table ? p->table : "");
		engram_error_fix(err,
				 "use 1..%d letters, digits, \"_\", \"-\" "
				 "and inner single dots",
				 ENGRAM_NAME_MAX);
		return ENGRAM_EINVAL;
	}
	if (p->tp_size ? p->tp_rank >= p->tp_size : p->tp_rank > 0)
		return engram_error_set(err, ENGRAM_EINVAL,
					"tp_rank: %" PRIu32 " is not below "
					"tp_size, %" PRIu32,
					p->tp_rank, p->tp_size);
	if (!p->layers != !p->num_layers || p->num_layers > ENGRAM_LAYERS_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"num_layers: %" PRIu32 " with %s list "
					"of layers; at most %d",
					p->num_layers, p->layers ? "a" : "no",
					ENGRAM_LAYERS_MAX);
	if (p->choose_node && (p->node < 0 || p->node >= ENGRAM_NODES))
		return engram_error_set(err, ENGRAM_EINVAL,
					"node: %" PRId32 " is not in 0..%d",
					p->node, ENGRAM_NODES - 1);
	for (i = 0; i < p->num_layers; i++)
		for (j = 0; j < i; j++)
			if (p->layers[i] == p->layers[j])
				return engram_error_set(err, ENGRAM_EINVAL,
							"layers: %" PRId32
							" is named twice",
							p->layers[i]);
	return ENGRAM_OK;
}

static json_t *request(const struct engram_client *client,
		       const struct engram_attach_params *p)
{
	json_t *layers = NULL, *writable = NULL, *node = NULL;
	uint32_t i;

	/* Not named unless it is wanted: older sidecars do not know it. */
	if (p->writable)
		writable = json_true();
	/* Who does not have it has one copy of a table. */
	if (p->choose_node && client->has_nodes)
		node = json_integer(p->node);
	if (p->layers) {
		layers = json_array();
		for (i = 0; i < p->num_layers; i++)
			json_array_append_new(layers,
					      json_integer(p->layers[i]));
	}
	return json_pack("{s:s, s:o*, s:I, s:I, s:o*, s:o*}", "table", p->table,
			 "layers", layers, "tp_rank", (json_int_t)p->tp_rank,
			 "tp_size", (json_int_t)(p->tp_size ? p->tp_size : 1),
			 "writable", writable, "node", node);
}

/* An integer in [min, max], else a refusal of the answer. */
static enum engram_status get_int(struct attach *a, const json_t *object,
				  const char *key, int64_t min, int64_t max,
				  int64_t *out)
{
	const json_t *value = json_object_get(object, key);
	int64_t number = json_integer_value(value);
	char what[64];

	if (json_is_integer(value) && number >= min && number <= max) {
		*out = number;
		return ENGRAM_OK;
	}
	snprintf(what, sizeof(what), "\"%s\" is missing or out of range", key);
	return bad_answer(a, what);
}

/* The descriptor that `object`.fd points to; each may be used once. */
static enum engram_status get_fd(struct attach *a, const json_t *object,
				 int *out)
{
	enum engram_status status;
	int64_t index;

	status = get_int(a, object, "fd", 0, ENGRAM_FDS_MAX - 1, &index);
	if (status)
		return status;
	if ((size_t)index >= a->fds.count)
		return bad_answer(a, "it names a descriptor that did not come "
				     "with it");
	if (a->fd_used[index])
		return bad_answer(a, "it names one descriptor twice");
	a->fd_used[index] = true;
	*out = a->fds.fd[index];
	return ENGRAM_OK;
}

/* The place of a layer in the table: as asked, or else as answered. */
static enum engram_status place_of(struct attach *a, int32_t layer_id,
				   uint32_t answered, uint32_t *place)
{
	const struct engram_attach_params *p = a->params;
	uint32_t i;

	if (!p->layers) {
		for (i = 0; i < answered; i++)
			if (a->table->layers[i].layer_id == layer_id)
				return bad_answer(a, "it has a layer twice");
		*place = answered;
		return ENGRAM_OK;
	}
	for (i = 0; i < p->num_layers; i++)
		if (p->layers[i] == layer_id)
			break;
	if (i == p->num_layers)
		return bad_answer(a, "it has a layer that was not asked for");
	if (a->table->layers[i].map.header)
		return bad_answer(a, "it has a layer twice");
	*place = i;
	return ENGRAM_OK;
}

/* All layers of a table are hashed and decoded alike. */
bool table_same_geometry(const struct engram_segment_header *a,
			 const struct engram_segment_header *b)
{
	return a->dtype == b->dtype && a->scale_scheme == b->scale_scheme &&
	       a->dim == b->dim && a->block_size == b->block_size &&
	       a->min_ngram == b->min_ngram && a->max_ngram == b->max_ngram &&
	       a->num_heads == b->num_heads && a->num_cols == b->num_cols &&
	       a->pad_id == b->pad_id && a->num_cuts == b->num_cuts &&
	       !memcmp(a->cut_ids, b->cut_ids, sizeof(a->cut_ids)) &&
	       a->token_map.count == b->token_map.count &&
	       !strcmp(a->instance, b->instance);
}

/* The segment reader has checked that the header is sound in itself; here it
 * is checked that it is the one that was asked for. */
static enum engram_status check_header(struct attach *a,
				       const struct table_layer *layer)
{
	const struct engram_segment_header *h = layer->map.header;
	struct engram_table *t = a->table;

	if (strcmp(h->table, t->name) != 0)
		return bad_segment(a, layer->layer_id,
				   "the segment belongs to "
				   "another table");
	if (strcmp(h->instance, t->control->instance) != 0)
		return bad_segment(a, layer->layer_id,
				   "the segment belongs to "
				   "another instance");
	if (h->generation != t->generation)
		return bad_segment(a, layer->layer_id,
				   "the segment is of another generation");
	if (h->layer_id != layer->layer_id)
		return bad_segment(a, layer->layer_id,
				   "the segment holds another layer");
	if (!table_same_geometry(h, a->first))
		return bad_segment(a, layer->layer_id,
				   "its geometry differs from that of the "
				   "table's other layers");
	return ENGRAM_OK;
}

static void set_rows(struct table_layer *layer)
{
	const struct engram_segment_header *h = layer->map.header;

	layer->rows = (struct engram_rows){
		.codes = layer->map.codes,
		.scales = layer->map.scales,
		.code_stride_bytes = (int64_t)h->code_stride,
		.scale_stride_bytes = (int64_t)h->scale_stride,
		.row_begin = (int64_t)layer->map.row_begin,
		.row_end = (int64_t)layer->map.row_end,
		.dtype = h->dtype,
		.scale_scheme = h->scale_scheme,
		.dim = h->dim,
		.block_size = h->block_size,
		.tensor_scale = h->tensor_scale,
	};
}

/* Do the ranges of the answer follow from the primes of the segment? */
static enum engram_status check_ranges(struct attach *a, const json_t *object,
				       struct table_layer *layer)
{
	const struct engram_segment_header *h = layer->map.header;
	int64_t head_begin, head_end, local_heads;
	enum engram_status status;

	status = engram_shard_of(engram_segment_at(h, &h->primes), h->num_cols,
				 a->table->tp_rank, a->table->tp_size,
				 &layer->shard, a->err);
	if (!status)
		status = get_int(a, object, "head_begin", 0, UINT32_MAX,
				 &head_begin);
	if (!status)
		status = get_int(a, object, "head_end", 0, UINT32_MAX,
				 &head_end);
	if (!status)
		status = get_int(a, object, "local_heads", 0, UINT32_MAX,
				 &local_heads);
	if (status)
		return status;
	if (head_begin != layer->shard.head_begin ||
	    head_end != layer->shard.head_end ||
	    local_heads != layer->shard.local_heads ||
	    (int64_t)layer->map.row_begin != layer->shard.row_begin ||
	    (int64_t)layer->map.row_end != layer->shard.row_end)
		return bad_segment(a, layer->layer_id,
				   "its ranges are not those of this rank");
	return ENGRAM_OK;
}

static enum engram_status map_segment(struct attach *a, int fd,
				      uint64_t row_begin, uint64_t row_end,
				      struct engram_segment_map *map)
{
	if (!a->params->writable)
		return engram_segment_map_fd(fd, row_begin, row_end, map,
					     a->err);
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return bad_answer(a, "a descriptor of it can not write");
	return engram_segment_map_writable(fd, row_begin, row_end, map, a->err);
}

static enum engram_status map_layer(struct attach *a, const json_t *object,
				    uint32_t answered)
{
	int64_t layer_id, row_begin, row_end;
	struct table_layer *layer;
	enum engram_status status;
	struct stat st;
	uint32_t place;
	int fd;

	status = get_int(a, object, "layer_id", 0, INT32_MAX, &layer_id);
	if (!status)
		status = place_of(a, (int32_t)layer_id, answered, &place);
	if (!status)
		status = get_int(a, object, "row_begin", 0, INT64_MAX,
				 &row_begin);
	if (!status)
		status = get_int(a, object, "row_end", row_begin, INT64_MAX,
				 &row_end);
	if (!status)
		status = get_fd(a, object, &fd);
	if (status)
		return status;
	layer = &a->table->layers[place];
	layer->layer_id = (int32_t)layer_id;
	if (fstat(fd, &st))
		return engram_error_sys(a->err, errno, "fstat");
	layer->dev = st.st_dev;
	layer->ino = st.st_ino;
	status = map_segment(a, fd, (uint64_t)row_begin, (uint64_t)row_end,
			     &layer->map);
	if (status) {
		/* unmapping is only for what has been mapped */
		layer->map.header = NULL;
		engram_error_context(a->err, "layer %d", layer->layer_id);
		return status;
	}
	if (!a->first)
		a->first = layer->map.header;
	status = check_header(a, layer);
	if (!status)
		status = check_ranges(a, object, layer);
	set_rows(layer);
	return status;
}

static enum engram_status map_layers(struct attach *a, const json_t *list)
{
	struct engram_table *t = a->table;
	enum engram_status status;
	size_t count = json_array_size(list), i;

	if (!count || count > ENGRAM_LAYERS_MAX ||
	    (a->params->layers && count != a->params->num_layers))
		return bad_answer(a, "its number of layers is wrong");
	for (i = 0; i < count; i++) {
		status = map_layer(a, json_array_get(list, i), (uint32_t)i);
		if (status)
			return status;
	}
	t->num_layers = (uint32_t)count;
	for (i = 0; i < count; i++) {
		const struct engram_segment_header *h = t->layers[i].map.header;

		t->primes[i] = engram_segment_at(h, &h->primes);
		t->offsets[i] = engram_segment_at(h, &h->offsets);
		t->multipliers[i] = engram_segment_at(h, &h->multipliers);
	}
	return ENGRAM_OK;
}

static enum engram_status map_control(struct attach *a, const json_t *object)
{
	struct engram_client *client = a->table->client;
	enum engram_status status;
	int fd;

	status = get_fd(a, object, &fd);
	if (!status)
		status = engram_control_map_fd(fd, &a->table->control, a->err);
	if (status) {
		a->table->control = NULL;
		engram_error_context(a->err, "control page");
		return status;
	}
	if (strcmp(a->table->control->instance, client->instance) != 0)
		return bad_answer(a, "its control page is another instance's");
	return ENGRAM_OK;
}

static enum engram_status copy_identity(struct attach *a, const json_t *result)
{
	const char *table = json_string_value(json_object_get(result, "table"));
	const char *epoch =
		json_string_value(json_object_get(result, "boot_epoch"));
	const char *content =
		json_string_value(json_object_get(result, "content_id"));
	struct engram_table *t = a->table;
	const json_t *on_node = json_object_get(result, "node");
	enum engram_status status;
	int64_t generation, node = -1;
	char expected[17];

	snprintf(expected, sizeof(expected), "%016" PRIx64,
		 t->client->boot_epoch);
	if (!table || strcmp(table, t->name) != 0)
		return bad_answer(a, "it is about another table");
	if (!epoch || strcmp(epoch, expected) != 0)
		return bad_answer(a, "its boot epoch is not the greeting's");
	if (!content || strlen(content) != 32 ||
	    strspn(content, "0123456789abcdef") != 32)
		return bad_answer(a, "\"content_id\" is not 32 hex digits");
	status = get_int(a, result, "generation", 1, INT64_MAX, &generation);
	if (!status && on_node && !json_is_null(on_node))
		status = get_int(a, result, "node", 0, ENGRAM_NODES - 1, &node);
	if (status)
		return status;
	t->node = (int32_t)node;
	memcpy(t->content_id, content, sizeof(t->content_id));
	t->generation = (uint64_t)generation;
	t->boot_epoch = t->client->boot_epoch;
	return ENGRAM_OK;
}

void table_free(struct engram_table *t)
{
	uint32_t i;

	for (i = 0; i < ENGRAM_LAYERS_MAX && !t->borrowed; i++)
		if (t->layers[i].map.header)
			engram_segment_unmap(&t->layers[i].map);
	if (t->control)
		engram_control_unmap(t->control);
	free(t);
}

/* Everything that the answer holds, or nothing: the lease is given back. */
static enum engram_status take_answer(struct attach *a, const json_t *result)
{
	enum engram_status status;

	status = get_int(a, result, "lease", 0, INT64_MAX, &a->table->lease);
	if (status)
		return status;
	status = copy_identity(a, result);
	if (!status)
		status = map_control(a, json_object_get(result, "control"));
	if (!status)
		status = map_layers(a, json_object_get(result, "layers"));
	if (status)
		rpc_notify(a->table->client, "detach",
			   json_pack("{s:I}", "lease",
				     (json_int_t)a->table->lease),
			   NULL);
	return status;
}

static enum engram_status attach(struct attach *a)
{
	struct engram_client *client = a->table->client;
	enum engram_status status;
	json_t *params = request(client, a->params), *result;

	if (!params)
		return engram_error_set(a->err, ENGRAM_ENOMEM,
					"no memory for a request");
	FAILPOINT(client_asks);
	status = rpc_call(client, "attach", params, &result, &a->fds, a->err);
	if (!status) {
		FAILPOINT(client_answered);
		status = take_answer(a, result);
		FAILPOINT(client_mapped);
		/* engramd's own errors name the table themselves */
		if (status)
			engram_error_context(a->err, "table \"%s\"",
					     a->table->name);
		/* Mappings hold the memory; a descriptor held on would only
		 * count against RLIMIT_NOFILE. */
		conn_close_fds(&a->fds);
		json_decref(result);
	}
	if (!status)
		client->num_tables++;
	return status;
}

enum engram_status table_attach(struct engram_client *client,
				const struct engram_attach_params *params,
				struct engram_table **out,
				struct engram_error *err)
{
	struct attach a = {.params = params, .err = err};
	enum engram_status status = client_connected(client, err);
	struct engram_table *t;

	*out = NULL;
	if (status)
		return status;
	t = calloc(1, sizeof(*t));
	if (!t)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a table");
	a.table = t;
	t->client = client;
	t->fork_generation = client->fork_generation;
	t->serial = client->serial;
	t->tp_rank = params->tp_rank;
	t->tp_size = params->tp_size ? params->tp_size : 1;
	t->writable = params->writable;
	t->node_asked = params->choose_node ? params->node : -1;
	t->num_asked = params->num_layers;
	if (params->num_layers)
		memcpy(t->layer_ids, params->layers,
		       params->num_layers * sizeof(t->layer_ids[0]));
	memcpy(t->name, params->table, strlen(params->table));
	status = attach(&a);
	if (status) {
		table_free(t);
		return status;
	}
	*out = t;
	return ENGRAM_OK;
}

enum engram_status engram_attach(engram_client *client,
				 const struct engram_attach_params *params,
				 engram_table **out)
{
	struct engram_error *err = client_error();
	enum engram_status status;

	*out = NULL;
	status = fork_check(client->fork_generation, err);
	if (!status)
		status = check_params(params, err);
	if (status)
		return status;
	pthread_mutex_lock(&client->lock);
	status = table_attach(client, params, out, err);
	pthread_mutex_unlock(&client->lock);
	return status;
}

void table_let_go(struct engram_table *table)
{
	struct engram_client *client = table->client;

	/* No answer is awaited: a process must be able to leave while the
	 * sidecar is stopped.  Whatever fails here, the connection is closed
	 * then, and the lease with it.  One of a former connection ended with
	 * that. */
	if (table->serial == client->serial)
		rpc_notify(
			client, "detach",
			json_pack("{s:I}", "lease", (json_int_t)table->lease),
			NULL);
	client->num_tables--;
}

enum engram_status engram_detach(engram_table *table)
{
	struct engram_client *client;
	struct engram_table *next;

	if (!table)
		return ENGRAM_OK;
	if (fork_check(table->fork_generation, client_error()))
		return ENGRAM_EINVAL;
	client = table->client;
	FAILPOINT(client_detaches);
	pthread_mutex_lock(&client->lock);
	next = table->next;
	if (next)
		table_let_go(next);
	table_let_go(table);
	pthread_mutex_unlock(&client->lock);
	FAILPOINT(client_detached);
	if (next)
		table_free(next);
	table_free(table);
	return ENGRAM_OK;
}
