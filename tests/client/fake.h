/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sidecar for tests of the client: a table in memfd segments, and a thread
 * for each connection that greets and answers as the protocol says, or as a
 * test's own handler does.
 */
#ifndef ENGRAM_TEST_FAKE_H
#define ENGRAM_TEST_FAKE_H

#include <jansson.h>
#include <pthread.h>
#include <stdint.h>

#include "engram_control.h"
#include "engram_geometry.h"
#include "engram_segment.h"

#define FAKE_LAYERS	2
#define FAKE_DIM	64
#define FAKE_BLOCK	32
#define FAKE_RECORD	(FAKE_DIM + FAKE_DIM / FAKE_BLOCK)
#define FAKE_MAX_NGRAM	4
#define FAKE_HEADS	3
#define FAKE_COLS	9
#define FAKE_VOCAB	50
#define FAKE_PAD_ID	11
#define FAKE_GENERATION 5
#define FAKE_EPOCH	UINT64_C(0x6f0c1122334455aa)
#define FAKE_CONTENT	"00112233445566778899aabbccddeeff"

extern const int32_t fake_layer_ids[FAKE_LAYERS]; /* 3 and 7 */

struct fake_table {
	struct engram_backing backing;
	struct engram_geometry *geometry;
	int32_t token_map[FAKE_VOCAB];
	struct engram_segment_writer *segments[FAKE_LAYERS];
	struct engram_control_owner *control;
	struct engram_control_page *page;
};

/* What a test may have otherwise than it should be. */
struct fake_twist {
	int in_shm; /* not in memfd: can be attached writable */
	int no_token_map;
	uint32_t layout;      /* 0: packed */
	const char *table;    /* in the headers */
	const char *instance; /* in the headers */
	uint64_t generation;  /* in the headers */
	int32_t layer_shift;  /* added to the layer ids of the headers */
	uint32_t pad_shift;   /* pad id of the second layer differs */
};

void fake_table_make(struct fake_table *t, const struct fake_twist *twist);
void fake_table_free(struct fake_table *t);

/* Byte `i` of the record of a row, codes then scales. */
uint8_t fake_byte(int32_t layer_id, int64_t row, uint32_t i);

struct fake;
/* Serves one connection in a thread of its own; closing `sock` is not its
 * job. */
typedef void (*fake_handler)(struct fake *fake, int sock);

struct fake {
	char dir[64];
	char path[96];
	int listener;
	struct fake_table *table;
	fake_handler handler;
	const char *text; /* for handlers that say one thing */
	size_t text_len;
	pthread_t acceptor;
	/* under lock */
	pthread_mutex_t lock;
	int socks[256];
	pthread_t threads[256];
	unsigned int connections;
	int leases;   /* held now */
	int detached; /* detach requests seen */
	int writable; /* attached so */
	int64_t next_lease;
	int stop;
};

void fake_start(struct fake *fake, struct fake_table *table,
		fake_handler handler);
/* Hang up on everybody, and wait for the threads. */
void fake_stop(struct fake *fake);
/* A path where no sidecar is yet; fake_listen brings it up there. */
void fake_prepare(struct fake *fake, struct fake_table *table,
		  fake_handler handler);
void fake_listen(struct fake *fake);

/* ---- for handlers ---- */

void fake_greet(int sock);
/* Return 0 when the client has hung up. */
int fake_say(int sock, const char *text, size_t len);
int fake_say_fds(int sock, const char *text, size_t len, const int *fds,
		 size_t num_fds);
/* One line without "\n" into line[4096]; 0 at the end. */
int fake_hear(int sock, char *line);
/* The answer to an attach request, a line, with its descriptors; *text is
 * malloc'd, the descriptors are the caller's to close. */
void fake_attach_answer(struct fake *fake, const json_t *request, char **text,
			int fds[FAKE_LAYERS + 1], size_t *num_fds);
/* Hear and answer one request as a sidecar should; 0 at the end. */
int fake_serve_one(struct fake *fake, int sock);
/* The handler that does nothing wrong. */
void fake_serve(struct fake *fake, int sock);

/* An answer whose result is this JSON text. */
void fake_answer(int sock, json_int_t id, const char *result);

#endif
