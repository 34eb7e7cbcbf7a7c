/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client.h"

/* After a broken answer nothing that follows can be trusted either. */
static enum engram_status broken(struct engram_client *client,
				 struct engram_error *err, const char *what)
{
	conn_close(&client->conn);
	engram_error_set(err, ENGRAM_EPROTOCOL,
			 "engramd broke the control protocol: %s", what);
	engram_error_fix(err,
			 "check that the socket is engramd's, and that "
			 "its version fits this library's (%s)",
			 engram_version());
	return ENGRAM_EPROTOCOL;
}

static enum engram_status parse(struct engram_client *client, const char *line,
				size_t len, json_t **out,
				struct engram_error *err)
{
	json_error_t fault;

	if (engram_wire_json_depth(line, len) > ENGRAM_DEPTH_MAX)
		return broken(client, err, "an answer is nested too deep");
	*out = json_loadb(line, len, JSON_REJECT_DUPLICATES, &fault);
	if (!*out && json_error_code(&fault) == json_error_out_of_memory)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to parse an answer");
	if (!*out)
		return broken(client, err, fault.text);
	if (!json_is_object(*out)) {
		json_decref(*out);
		return broken(client, err, "an answer is not an object");
	}
	return ENGRAM_OK;
}

static enum engram_status status_of_code(json_int_t code)
{
	json_int_t status = -32000 - code;

	if (status > ENGRAM_OK && status < ENGRAM_STATUS_COUNT)
		return (enum engram_status)status;
	switch (code) {
	case -32601:
		return ENGRAM_EUNSUPPORTED;
	case -32602:
		return ENGRAM_EINVAL;
	case -32603:
		return ENGRAM_EINTERNAL;
	default:
		return ENGRAM_EPROTOCOL;
	}
}

static uint64_t figure(const json_t *data, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(data, key));

	return value > 0 ? (uint64_t)value : 0;
}

/* The error object of an answer as a status and its text. */
static enum engram_status product_error(const json_t *error,
					struct engram_error *err)
{
	const char *message =
		json_string_value(json_object_get(error, "message"));
	const json_t *data = json_object_get(error, "data");
	const char *name = json_string_value(json_object_get(data, "name"));
	const char *fix = json_string_value(json_object_get(data, "fix"));
	const char *path = json_string_value(json_object_get(data, "path"));
	enum engram_status status = ENGRAM_STATUS_COUNT;

	if (name)
		status = engram_status_from_name(name);
	if (status == ENGRAM_STATUS_COUNT || status == ENGRAM_OK)
		status = status_of_code(
			json_integer_value(json_object_get(error, "code")));
	engram_error_set(err, status, "%s",
			 message ? message : engram_status_sentence(status));
	if (fix)
		engram_error_fix(err, "%s", fix);
	if (path)
		engram_error_path(err, "%s", path);
	engram_error_figures(err, figure(data, "needed"),
			     figure(data, "available"));
	if (err)
		err->sys_errno = (int)(figure(data, "errno") & 0xffff);
	return status;
}

static enum engram_status copy_word(char *out, size_t size, const json_t *value)
{
	const char *text = json_string_value(value);

	if (!text || strlen(text) >= size)
		return ENGRAM_EPROTOCOL;
	memcpy(out, text, strlen(text) + 1);
	return ENGRAM_OK;
}

static enum engram_status parse_epoch(uint64_t *out, const json_t *value)
{
	const char *text = json_string_value(value);

	if (!text || strlen(text) != 16 ||
	    strspn(text, "0123456789abcdef") != 16)
		return ENGRAM_EPROTOCOL;
	*out = strtoull(text, NULL, 16);
	return ENGRAM_OK;
}

static bool has_word(const json_t *array, const char *word)
{
	for (size_t i = 0; i < json_array_size(array); i++) {
		const char *has = json_string_value(json_array_get(array, i));

		if (has && !strcmp(has, word))
			return true;
	}
	return false;
}

static enum engram_status check_greeting(struct engram_client *client,
					 const json_t *msg,
					 struct engram_error *err)
{
	const char *method = json_string_value(json_object_get(msg, "method"));
	const json_t *params = json_object_get(msg, "params");
	const char *product =
		json_string_value(json_object_get(params, "product"));
	const json_t *protocol = json_object_get(params, "protocol");
	const json_t *major = json_object_get(protocol, "major");
	uint64_t epoch;

	/* What a full or stopping sidecar says instead of hello. */
	if (json_is_object(json_object_get(msg, "error")))
		return product_error(json_object_get(msg, "error"), err);
	if (!method || strcmp(method, "hello") != 0 || !product ||
	    strcmp(product, "engramd") != 0 || !json_is_integer(major))
		return broken(client, err, "it did not greet as engramd does");
	if (json_integer_value(major) != ENGRAM_PROTOCOL_MAJOR) {
		engram_error_set(err, ENGRAM_EVERSION,
				 "engramd speaks control protocol %lld, this "
				 "library speaks %d",
				 (long long)json_integer_value(major),
				 ENGRAM_PROTOCOL_MAJOR);
		engram_error_fix(err, "install engramd and libengram of the "
				      "same release");
		return ENGRAM_EVERSION;
	}
	if (copy_word(client->version, sizeof(client->version),
		      json_object_get(params, "version")) ||
	    copy_word(client->instance, sizeof(client->instance),
		      json_object_get(params, "instance")) ||
	    parse_epoch(&epoch, json_object_get(params, "boot_epoch")))
		return broken(client, err, "its greeting is incomplete");
	__atomic_store_n(&client->boot_epoch, epoch, __ATOMIC_RELAXED);
	client->has_nodes =
		has_word(json_object_get(params, "capabilities"), "nodes");
	return ENGRAM_OK;
}

enum engram_status rpc_greeting(struct engram_client *client, int64_t deadline,
				struct engram_error *err)
{
	enum engram_status status;
	char *line;
	size_t len;
	json_t *msg;

	status = conn_line(&client->conn, deadline, &line, &len, err);
	if (status == ENGRAM_ETIMEDOUT) {
		engram_error_set(err, status, "engramd did not greet in time");
		engram_error_fix(err, "see whether engramd is stopped or "
				      "overloaded");
	}
	if (!status)
		status = parse(client, line, len, &msg, err);
	if (status)
		return status;
	status = check_greeting(client, msg, err);
	json_decref(msg);
	return status;
}

/*
 * Not json_dumps: when it runs out of memory between two parts of a text it
 * may leave one out and go on (jansson 2.14), and its text is not for free()
 * if others in the process have given jansson another allocator.
 */
char *rpc_dump(const json_t *value, size_t *len, struct engram_error *err)
{
	const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY;
	size_t bytes = json_dumpb(value, NULL, 0, flags);
	char *text = bytes ? malloc(bytes + 1) : NULL;

	if (!text || json_dumpb(value, text, bytes, flags) != bytes) {
		free(text);
		engram_error_set(err, ENGRAM_ENOMEM, "no memory for a message");
		return NULL;
	}
	text[bytes] = '\0';
	if (len)
		*len = bytes;
	return text;
}

enum engram_status rpc_pack_fault(const char *what, const json_error_t *fault,
				  struct engram_error *err)
{
	if (json_error_code(fault) == json_error_invalid_utf8)
		return engram_error_set(err, ENGRAM_EINVAL, "%s: not UTF-8",
					what);
	return engram_error_set(err, ENGRAM_ENOMEM, "no memory for a message");
}

static enum engram_status send_request(struct engram_client *client,
				       const char *method, int64_t id,
				       json_t *params, int fd, int64_t deadline,
				       struct engram_error *err)
{
	enum engram_status status;
	json_t *msg;
	json_error_t fault;
	char *text;
	size_t len;

	/* "o*": a NULL leaves the member out; the reference is stolen, also on
	 * a failure. */
	if (id)
		msg = json_pack_ex(&fault, 0, "{s:s, s:I, s:s, s:o*}",
				   "jsonrpc", "2.0", "id", (json_int_t)id,
				   "method", method, "params", params);
	else
		msg = json_pack_ex(&fault, 0, "{s:s, s:s, s:o*}", "jsonrpc",
				   "2.0", "method", method, "params", params);
	if (!msg)
		return rpc_pack_fault("method", &fault, err);
	text = rpc_dump(msg, &len, err);
	json_decref(msg);
	if (!text)
		return ENGRAM_ENOMEM;
	if (len + 1 > ENGRAM_LINE_MAX) {
		status = engram_error_set(err, ENGRAM_EINVAL,
					  "a request of %zu bytes is over the "
					  "limit of %u",
					  len + 1, ENGRAM_LINE_MAX);
	} else {
		text[len] = '\n'; /* sent with its length, so no NUL needed */
		status = conn_send_fd(&client->conn, text, len + 1, fd,
				      deadline, err);
	}
	free(text);
	return status;
}

enum engram_status rpc_notify(struct engram_client *client, const char *method,
			      json_t *params, struct engram_error *err)
{
	return send_request(client, method, 0, params, -1, conn_now(), err);
}

/* Wake a thread in engram_next_event: there are events in the queue or behind
 * what has been read, or there will be none any more. */
void rpc_wake(struct engram_client *client)
{
	ssize_t ignored = eventfd_write(client->wake, 1);

	(void)ignored; /* EAGAIN: it is awake already */
}

/*
 * An answer to a call that timed out.  If it is an attach, nobody will ever
 * use the lease.
 */
static void drop_late_answer(struct engram_client *client, const json_t *msg)
{
	const json_t *lease =
		json_object_get(json_object_get(msg, "result"), "lease");
	struct conn_fds fds;

	if (!json_is_integer(lease))
		return;
	conn_take_fds(&client->conn, &fds);
	conn_close_fds(&fds);
	rpc_notify(client, "detach",
		   json_pack("{s:I}", "lease", json_integer_value(lease)),
		   NULL);
}

/*
 * Deal with one message.  *answer becomes a new reference when it is the
 * answer to `id` (never for id 0), else NULL.
 */
static enum engram_status dispatch(struct engram_client *client,
				   const char *line, size_t len, int64_t id,
				   json_t **answer, struct engram_error *err)
{
	enum engram_status status;
	json_t *msg, *msg_id;

	*answer = NULL;
	status = parse(client, line, len, &msg, err);
	if (status)
		return status;
	msg_id = json_object_get(msg, "id");
	if (!msg_id && json_is_string(json_object_get(msg, "method"))) {
		status = events_push(&client->events, line, len, err);
		if (!status)
			rpc_wake(client);
	} else if (id && json_is_integer(msg_id) &&
		   json_integer_value(msg_id) == id) {
		*answer = msg;
		return ENGRAM_OK;
	} else if (json_is_integer(msg_id) && json_integer_value(msg_id) > 0 &&
		   json_integer_value(msg_id) < client->next_id) {
		drop_late_answer(client, msg);
	} else if (json_is_null(msg_id) &&
		   json_is_object(json_object_get(msg, "error"))) {
		/* it lost the thread of what we said, and hangs up */
		status = product_error(json_object_get(msg, "error"), err);
		conn_close(&client->conn);
	} else {
		status = broken(client, err, "an answer to no request");
	}
	json_decref(msg);
	return status;
}

static enum engram_status await(struct engram_client *client,
				const char *method, int64_t id,
				int64_t deadline, json_t **answer,
				struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	char *line;
	size_t len;

	*answer = NULL;
	while (!status && !*answer) {
		status = conn_line(&client->conn, deadline, &line, &len, err);
		if (!status)
			status = dispatch(client, line, len, id, answer, err);
		/* Notifications without end are no answer either. */
		if (!status && !*answer && deadline != CONN_NEVER &&
		    conn_now() > deadline)
			status = ENGRAM_ETIMEDOUT;
	}
	if (status == ENGRAM_ETIMEDOUT) {
		engram_error_set(err, status,
				 "engramd did not answer \"%s\" within %d ms",
				 method, client->call_timeout_ms);
		engram_error_fix(err, "see whether engramd is stopped or "
				      "overloaded, or raise the call timeout");
	}
	return status;
}

static enum engram_status call(struct engram_client *client, const char *method,
			       json_t *params, int fd, json_t **result,
			       struct conn_fds *fds, struct engram_error *err)
{
	int64_t deadline = conn_deadline(client->call_timeout_ms);
	int64_t id = client->next_id++;
	enum engram_status status;
	json_t *answer, *error;

	*result = NULL;
	if (fds)
		fds->count = 0;
	status = send_request(client, method, id, params, fd, deadline, err);
	if (!status)
		status = await(client, method, id, deadline, &answer, err);
	/* What has come behind the answer is in our buffer, where poll does
	 * not see it. */
	if (client->conn.sock < 0 || conn_buffered(&client->conn))
		rpc_wake(client);
	if (status)
		return status;
	error = json_object_get(answer, "error");
	if (json_is_object(error)) {
		status = product_error(error, err);
	} else if (!json_object_get(answer, "result")) {
		status = broken(client, err, "an answer without a result");
	} else {
		*result = json_incref(json_object_get(answer, "result"));
		if (fds)
			conn_take_fds(&client->conn, fds);
	}
	json_decref(answer);
	return status;
}

enum engram_status rpc_call(struct engram_client *client, const char *method,
			    json_t *params, json_t **result,
			    struct conn_fds *fds, struct engram_error *err)
{
	return call(client, method, params, -1, result, fds, err);
}

enum engram_status rpc_call_fd(struct engram_client *client, const char *method,
			       json_t *params, int fd, json_t **result,
			       struct engram_error *err)
{
	return call(client, method, params, fd, result, NULL, err);
}

enum engram_status rpc_pump(struct engram_client *client,
			    struct engram_error *err)
{
	enum engram_status status;
	json_t *answer;
	char *line;
	size_t len;

	for (;;) {
		status = conn_line(&client->conn, conn_now(), &line, &len, err);
		if (!status)
			status = dispatch(client, line, len, 0, &answer, err);
		if (status || client->events.count)
			return status;
	}
}
