/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engram_wire.h"
#include "log.h"
#include "rpc.h"
#include "views.h"

char *rpc_text(const json_t *value, size_t *len)
{
	/* Not json_dumps: it ignores some failures to grow its buffer, and
	 * then returns text with bytes missing. */
	size_t size = json_dumpb(value, NULL, 0, JSON_COMPACT);
	char *text = size ? malloc(size + 2) : NULL;

	if (!text)
		return NULL;
	if (json_dumpb(value, text, size, JSON_COMPACT) != size) {
		free(text);
		return NULL;
	}
	text[size] = '\n';
	text[size + 1] = '\0';
	*len = size + 1;
	return text;
}

/* The line of a message; takes over `message`, which may be NULL. */
static char *line_of(json_t *message, size_t *len)
{
	char *line = message ? rpc_text(message, len) : NULL;

	json_decref(message);
	return line;
}

/* Takes over `message` and the hold of `fds`. */
void rpc_send(struct client *client, json_t *message,
	      const struct conn_fds *fds)
{
	size_t len;
	char *line = line_of(message, &len);

	if (line) {
		conn_send(client->conn, line, len, fds);
		return;
	}
	/* Not even an answer: a connection that is closed tells the client
	 * more than one that stays silent. */
	log_error("no memory for an answer", LOG_U("connection", client->id));
	if (fds && fds->release)
		fds->release(fds->hold);
	conn_abort(client->conn);
}

json_t *rpc_reply_object(json_t *id, const char *key, json_t *value)
{
	return json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id",
			 id ? json_incref(id) : json_null(), key, value);
}

void rpc_reply_error(struct client *client, json_t *id, int code,
		     const struct engram_error *err, const struct job *job)
{
	rpc_send(client,
		 rpc_reply_object(id, "error", view_error(code, err, job)),
		 NULL);
}

void rpc_reply(struct client *client, json_t *id, json_t *result)
{
	if (id)
		rpc_send(client, rpc_reply_object(id, "result", result), NULL);
	else
		json_decref(result);
}

void rpc_notify(struct client *client, const char *method, json_t *params)
{
	rpc_send(client,
		 json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method",
			   method, "params", params),
		 NULL);
}

char *rpc_notification(const char *method, json_t *params)
{
	size_t len;

	return line_of(json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method",
				 method, "params", params),
		       &len);
}

void rpc_refuse(int fd, const struct engram_error *err)
{
	json_t *error = view_error(ENGRAM_RPC_CODE(err->status), err, NULL);
	size_t len;
	char *line = line_of(rpc_reply_object(NULL, "error", error), &len);

	/* A new socket has room for a line; if not, closing says enough. */
	if (line)
		(void)send(fd, line, len, MSG_NOSIGNAL | MSG_DONTWAIT);
	free(line);
}
