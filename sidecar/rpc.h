/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON-RPC 2.0: from a line to a method and back.  One table of methods says
 * what exists, who may call it and what parameters it takes; dispatch,
 * checks and rpc.discover all read it.
 */
#ifndef ENGRAMD_RPC_H
#define ENGRAMD_RPC_H

#include <jansson.h>
#include <stdbool.h>

#include "engram_error.h"
#include "server.h"

/* JSON-RPC's own error codes. */
enum {
	RPC_PARSE = -32700,
	RPC_REQUEST = -32600,
	RPC_METHOD = -32601,
	RPC_PARAMS = -32602,
	RPC_INTERNAL = -32603
};

enum rpc_access { RPC_READ, RPC_CHANGE };

enum rpc_type {
	RPC_STRING,
	RPC_INTEGER, /* min..max */
	RPC_NUMBER,  /* min..max */
	RPC_BOOLEAN,
	RPC_INTEGERS, /* an array of min..max items */
	RPC_OBJECT
};

struct rpc_param {
	const char *name;
	enum rpc_type type;
	bool required;
	int64_t min, max;
	const char *summary;
};

#define RPC_PARAMS_MAX 16

struct rpc_call {
	struct server *server;
	struct client *client;
	json_t *id;	/* NULL: a notification */
	json_t *params; /* checked; an object */
	/* What the method leaves: */
	json_t *result;	     /* NULL: {} */
	bool deferred;	     /* it answers later, by rpc_reply */
	struct conn_fds fds; /* descriptors that go with the result */
	struct job *job;     /* for error.data.job */
};

struct rpc_method {
	const char *name;
	const char *summary;
	enum rpc_access access;
	enum engram_status (*run)(struct rpc_call *call,
				  struct engram_error *err);
	struct rpc_param params[RPC_PARAMS_MAX]; /* up to one without name */
};

/* Ends with a method without name; methods.c.  At most RPC_METHODS_MAX. */
extern const struct rpc_method rpc_methods[];

/* A line from the client. */
void rpc_line(struct client *client, const char *text, size_t len);
/* The line was too long: say so and close. */
void rpc_too_long(struct client *client);
/* Refuse a connection before it is a client; `fd` stays the caller's. */
void rpc_refuse(int fd, const struct engram_error *err);

/* JSON on one line and a newline, malloc'd; *len counts the newline.  NULL
 * without memory. */
char *rpc_text(const json_t *value, size_t *len);
/* A message to the client; takes over `message` (NULL, for want of memory,
 * closes the connection) and the hold of `fds` (may be NULL). */
void rpc_send(struct client *client, json_t *message,
	      const struct conn_fds *fds);
/* {"jsonrpc", "id", KEY: value}; takes over `value`, which may be NULL. */
json_t *rpc_reply_object(json_t *id, const char *key, json_t *value);
void rpc_reply_error(struct client *client, json_t *id, int code,
		     const struct engram_error *err, const struct job *job);
/* Takes over `result`; NULL is an internal error.  `id` NULL: no reply. */
void rpc_reply(struct client *client, json_t *id, json_t *result);
/* Takes over `params`; NULL closes the connection. */
void rpc_notify(struct client *client, const char *method, json_t *params);
/* The line of a notification, malloc'd; takes over `params`. */
char *rpc_notification(const char *method, json_t *params);

/* Checked parameters; absent ones give NULL, `dflt` or false. */
const char *rpc_string(const struct rpc_call *call, const char *name);
int64_t rpc_integer(const struct rpc_call *call, const char *name,
		    int64_t dflt);
bool rpc_boolean(const struct rpc_call *call, const char *name);

/* May the client do `what` ("call ..."), which needs that access?
 * ENGRAM_EPERM. */
enum engram_status rpc_check_access(const struct client *client,
				    enum rpc_access access, const char *what,
				    struct engram_error *err);

const char *rpc_type_name(enum rpc_type type);
enum engram_status rpc_no_memory(struct engram_error *err);

#endif
