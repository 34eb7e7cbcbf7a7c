/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients see of tables, jobs and errors.  All return NULL without
 * memory.
 */
#ifndef ENGRAMD_VIEWS_H
#define ENGRAMD_VIEWS_H

#include <jansson.h>

#include "jobs.h"
#include "server.h"
#include "tables.h"

json_t *view_table(const struct table *table);
/* Bytes of all of its generations. */
uint64_t view_table_bytes(const struct table *table);
json_t *view_job(struct job *job);
/* The clients that have leases of a generation. */
json_t *view_holders(const struct server *server, const struct generation *gen);
struct lease;
/* The node of memory that its copy is for; null where there is one copy. */
json_t *view_node(const struct lease *lease);
json_t *view_client(const struct client *client);
json_t *view_hello(const struct server *server);
json_t *view_status(struct server *server);

/* A JSON-RPC error object.  `job` (may be NULL) goes into data. */
json_t *view_error(int code, const struct engram_error *err,
		   const struct job *job);

/* Text of any bytes: what is not UTF-8 shows as "?". */
json_t *view_text(const char *text);
/* 16 hex digits for each word, the first one first. */
json_t *view_hex(const uint64_t *words, unsigned int count);

#endif
