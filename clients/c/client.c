/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define CALL_TIMEOUT_MS	 30000
#define BACKOFF_FIRST_MS 10
#define BACKOFF_LAST_MS	 1000
#define RECONNECT_MS	 1000 /* for a greeting, while a step may wait */

static void sleep_ms(int ms)
{
	struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/* The sidecar is not up, not up yet, or has no room for us at the moment. */
static bool may_come_up(enum engram_status status)
{
	return status == ENGRAM_EDISCONNECTED || status == ENGRAM_ETIMEDOUT ||
	       status == ENGRAM_EBUSY || status == ENGRAM_EDRAINING;
}

static enum engram_status connect_once(struct engram_client *client,
				       const char *path, int timeout_ms,
				       struct engram_error *err)
{
	enum engram_status status;

	status = conn_open(&client->conn, path, err);
	if (!status)
		status = rpc_greeting(client, conn_deadline(timeout_ms), err);
	if (status)
		conn_close(&client->conn);
	return status;
}

static enum engram_status connect_wait(struct engram_client *client,
				       const char *path, int wait_ms,
				       struct engram_error *err)
{
	int64_t deadline = conn_deadline(wait_ms);
	int backoff = BACKOFF_FIRST_MS;
	enum engram_status status;
	int left;

	while (status =
		       connect_once(client, path, client->call_timeout_ms, err),
	       may_come_up(status)) {
		left = conn_poll_ms(deadline);
		if (!left)
			break;
		sleep_ms(left > 0 && left < backoff ? left : backoff);
		backoff = backoff * 2 < BACKOFF_LAST_MS ? backoff * 2
							: BACKOFF_LAST_MS;
	}
	return status;
}

static enum engram_status check_params(const struct engram_open_params *params,
				       struct engram_error *err)
{
	if (params->connect_wait_ms < -1)
		return engram_error_set(err, ENGRAM_EINVAL,
					"connect_wait_ms: %d, must be -1 or "
					"more",
					params->connect_wait_ms);
	if (params->call_timeout_ms < -1)
		return engram_error_set(err, ENGRAM_EINVAL,
					"call_timeout_ms: %d, must be -1 or "
					"more",
					params->call_timeout_ms);
	return ENGRAM_OK;
}

static enum engram_status tried_lately(const struct engram_client *client,
				       struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EDISCONNECTED,
			 "engramd is not there; the next try is in %d ms",
			 conn_poll_ms(client->retry_at));
	engram_error_fix(err, "see whether engramd runs; what is mapped stays "
			      "readable");
	return ENGRAM_EDISCONNECTED;
}

/* The same instance as before, or nothing. */
static enum engram_status reconnect(struct engram_client *client,
				    struct engram_error *err)
{
	char instance[sizeof(client->instance)];
	enum engram_status status;

	memcpy(instance, client->instance, sizeof(instance));
	status = connect_once(client, client->path, RECONNECT_MS, err);
	if (!status && strcmp(instance, client->instance) != 0) {
		engram_error_set(err, ENGRAM_EPROTOCOL,
				 "instance \"%s\" answers where \"%s\" was",
				 client->instance, instance);
		engram_error_fix(err, "open another client");
		conn_close(&client->conn);
		status = ENGRAM_EPROTOCOL;
	}
	memcpy(client->instance, instance, sizeof(instance));
	return status;
}

enum engram_status client_connected(struct engram_client *client,
				    struct engram_error *err)
{
	enum engram_status status;

	if (client->conn.sock >= 0)
		return ENGRAM_OK;
	if (conn_now() < client->retry_at)
		return tried_lately(client, err);
	status = reconnect(client, err);
	if (status) {
		client->backoff_ms = client->backoff_ms * 2 < BACKOFF_LAST_MS
					     ? client->backoff_ms * 2
					     : BACKOFF_LAST_MS;
		client->retry_at = conn_deadline(client->backoff_ms);
		return status;
	}
	client->backoff_ms = BACKOFF_FIRST_MS;
	client->serial++;
	if (client->naming)
		rpc_notify(client, "client.name", json_incref(client->naming),
			   NULL);
	return ENGRAM_OK;
}

static void client_free(struct engram_client *client)
{
	json_decref(client->naming);
	free(client->path);
	conn_close(&client->conn);
	if (client->wake >= 0)
		close(client->wake);
	fork_unwatch(&client->fork_entry);
	events_free(&client->events);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

/* NULL on an error. */
static struct engram_client *client_new(struct engram_error *err)
{
	struct engram_client *client = calloc(1, sizeof(*client));

	if (!client) {
		engram_error_set(err, ENGRAM_ENOMEM, "no memory for a client");
		return NULL;
	}
	conn_init(&client->conn);
	client->wake = -1;
	client->next_id = 1;
	client->backoff_ms = BACKOFF_FIRST_MS;
	client->fork_generation = fork_generation();
	client->fork_entry.fds[0] = &client->conn.sock;
	client->fork_entry.fds[1] = &client->wake;
	if (fork_watch(&client->fork_entry, err)) {
		free(client);
		return NULL;
	}
	pthread_mutex_init(&client->lock, NULL);
	client->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (client->wake < 0) {
		engram_error_sys(err, errno, "eventfd");
		client_free(client);
		return NULL;
	}
	return client;
}

static enum engram_status open_client(const struct engram_open_params *params,
				      struct engram_client **out,
				      struct engram_error *err)
{
	const char *name =
		params->name ? params->name : program_invocation_short_name;
	const char *path = params->socket;
	struct engram_client *client;
	enum engram_status status;
	json_error_t fault;
	char dflt[108];
	json_t *naming;

	status = check_params(params, err);
	if (status)
		return status;
	naming = json_pack_ex(&fault, 0, "{s:s}", "name", name);
	if (!naming && params->name)
		return rpc_pack_fault("name", &fault, err);
	if (!path) {
		engram_wire_default_socket(dflt, "default");
		path = dflt;
	}
	client = client_new(err);
	if (!client) {
		json_decref(naming);
		return err->status;
	}
	client->naming = naming;
	client->path = strdup(path);
	client->call_timeout_ms = params->call_timeout_ms
					  ? params->call_timeout_ms
					  : CALL_TIMEOUT_MS;
	status = client->path ? connect_wait(client, path,
					     params->connect_wait_ms, err)
			      : engram_error_set(err, ENGRAM_ENOMEM,
						 "no memory for a client");
	if (status) {
		client_free(client);
		return status;
	}
	/* For people to read only: its failure is not worth an answer. */
	if (naming)
		rpc_notify(client, "client.name", json_incref(naming), NULL);
	*out = client;
	return ENGRAM_OK;
}

enum engram_status engram_open(const struct engram_open_params *params,
			       engram_client **out)
{
	static const struct engram_open_params defaults;
	struct engram_error err;

	*out = NULL;
	if (open_client(params ? params : &defaults, out, &err))
		return engram_set_last_error(&err);
	return ENGRAM_OK;
}

enum engram_status engram_close(engram_client *client)
{
	struct engram_error *err = client_error();
	unsigned int num_tables;

	if (!client)
		return ENGRAM_OK;
	if (fork_check(client->fork_generation, err))
		return err->status;
	pthread_mutex_lock(&client->lock);
	num_tables = client->num_tables;
	pthread_mutex_unlock(&client->lock);
	if (num_tables) {
		engram_error_set(err, ENGRAM_EBUSY,
				 "%u tables of this client are attached",
				 num_tables);
		engram_error_fix(err, "call engram_detach for each first");
		return ENGRAM_EBUSY;
	}
	client_free(client);
	return ENGRAM_OK;
}

uint64_t engram_boot_epoch(const engram_client *client)
{
	return __atomic_load_n(&client->boot_epoch, __ATOMIC_RELAXED);
}

const char *engram_server_version(const engram_client *client)
{
	return client->version;
}

static enum engram_status parse_params(const char *text, json_t **out,
				       struct engram_error *err)
{
	json_error_t fault;

	*out = NULL;
	if (!text)
		return ENGRAM_OK;
	*out = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
	if (!*out)
		return engram_error_set(err, ENGRAM_EINVAL,
					"params: column %d: %s", fault.column,
					fault.text);
	if (json_is_object(*out))
		return ENGRAM_OK;
	json_decref(*out);
	return engram_error_set(err, ENGRAM_EINVAL,
				"params: must be a JSON object");
}

enum engram_status engram_call(engram_client *client, const char *method,
			       const char *params, char **result)
{
	struct engram_error *err = client_error();
	struct conn_fds fds;
	json_t *value, *answer;

	*result = NULL;
	if (fork_check(client->fork_generation, err) ||
	    parse_params(params, &value, err))
		return err->status;
	pthread_mutex_lock(&client->lock);
	/* An attach by hand: its descriptors have no place in a text. */
	if (!rpc_call(client, method, value, &answer, &fds, err)) {
		conn_close_fds(&fds);
		pthread_mutex_unlock(&client->lock);
		*result = rpc_dump(answer, NULL, err);
		json_decref(answer);
		return *result ? ENGRAM_OK : err->status;
	}
	pthread_mutex_unlock(&client->lock);
	return err->status;
}

/* Wait, without the lock, for bytes of engramd or for events that another
 * thread's call has queued. */
static enum engram_status wait_event(struct engram_client *client, int sock,
				     int64_t deadline, struct engram_error *err)
{
	struct pollfd pfd[2] = {{.fd = sock, .events = POLLIN},
				{.fd = client->wake, .events = POLLIN}};
	int n;

	n = poll(pfd, 2, conn_poll_ms(deadline));
	if (n < 0 && errno != EINTR)
		return engram_error_sys(err, errno, "poll");
	if (n == 0 && !conn_poll_ms(deadline))
		return engram_error_set(err, ENGRAM_ETIMEDOUT, "no event");
	return ENGRAM_OK;
}

enum engram_status engram_next_event(engram_client *client, int timeout_ms,
				     char **event)
{
	int64_t deadline = conn_deadline(timeout_ms);
	struct engram_error err;
	enum engram_status status;
	eventfd_t ignored;
	int sock;

	*event = NULL;
	if (fork_check(client->fork_generation, &err))
		return engram_set_last_error(&err);
	for (;;) {
		pthread_mutex_lock(&client->lock);
		eventfd_read(client->wake, &ignored);
		status = ENGRAM_OK;
		if (!client->events.count && !client->events.lost)
			status = rpc_pump(client, &err);
		*event = events_pop(&client->events);
		/* the wake-up just taken may have been for several threads */
		if (*event &&
		    (client->events.count || conn_buffered(&client->conn)))
			rpc_wake(client);
		sock = client->conn.sock;
		pthread_mutex_unlock(&client->lock);
		if (*event)
			return ENGRAM_OK;
		if (status && status != ENGRAM_ETIMEDOUT)
			return engram_set_last_error(&err);
		if (wait_event(client, sock, deadline, &err))
			return engram_set_last_error(&err);
	}
}
