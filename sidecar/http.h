/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP for scrapers and probes, by GNU libmicrohttpd in our loop: GET and HEAD,
 * an answer a connection.  What peers may take is bounded: connections, of
 * which those beyond are closed at once, and the memory and seconds of each.
 * Bodies of requests are not kept.  Loop thread only.
 */
#ifndef ENGRAMD_HTTP_H
#define ENGRAMD_HTTP_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "engram_error.h"
#include "listener.h"

#define HTTP_CONNECTIONS      64
#define HTTP_CONNECTION_BYTES (16u << 10) /* header of request and answer */
#define HTTP_SILENT_SECONDS   5		  /* in which nothing comes or goes */
#define HTTP_SECONDS	      10	  /* from the first to the last byte */

struct http;

struct http_answer {
	int code; /* 200, 404 or 503 */
	const char *type;
	char *body; /* malloc'd; NULL: there is no memory, so it is 503 */
	size_t len;
};

struct http_options {
	const char *listen;	      /* "ADDRESS:PORT", or NULL */
	const char *listen_key;	      /* of the configuration, for errors */
	struct listener_options path; /* a Unix socket, if .path is set;
				       * without `accepted` and `ctx` */
	/* Fill in the answer for a path; it is 404 before. */
	void (*get)(void *ctx, const char *path, struct http_answer *answer);
	void *ctx;
};

/* "127.0.0.1:9464" or "[::1]:9464", all in numbers; port 0: any that is
 * free. */
bool http_parse_address(const char *text, struct sockaddr_storage *out,
			socklen_t *len);

/* ENGRAM_ESYS, ENGRAM_EPERM with the key as path (the port is taken, or not
 * ours to take), and what listener_open says. */
enum engram_status http_open(struct event_base *base,
			     const struct http_options *options,
			     struct http **out, struct engram_error *err);
/* Where it listens by TCP, with its port, or NULL. */
const char *http_address(const struct http *http);
/* At once; NULL is allowed. */
void http_close(struct http *http);

#endif
