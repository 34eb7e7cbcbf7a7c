/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static char *take_oldest(struct client_events *events)
{
	char *text = events->text[events->head];

	events->head = (events->head + 1) % CLIENT_EVENTS_MAX;
	events->count--;
	events->bytes -= strlen(text) + 1;
	return text;
}

enum engram_status events_push(struct client_events *events, const char *line,
			       size_t len, struct engram_error *err)
{
	char *text = strndup(line, len);

	if (!text)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for an event");
	while (events->count &&
	       (events->count == CLIENT_EVENTS_MAX ||
		events->bytes + len + 1 > CLIENT_EVENT_BYTES)) {
		free(take_oldest(events));
		events->lost++;
	}
	events->text[(events->head + events->count) % CLIENT_EVENTS_MAX] = text;
	events->count++;
	events->bytes += strlen(text) + 1;
	return ENGRAM_OK;
}

char *events_pop(struct client_events *events)
{
	char *text;

	if (events->lost) {
		if (asprintf(&text,
			     "{\"jsonrpc\":\"2.0\",\"method\":\"event.lost\","
			     "\"params\":{\"count\":%" PRIu64 "}}",
			     events->lost) < 0)
			return NULL;
		events->lost = 0;
		return text;
	}
	return events->count ? take_oldest(events) : NULL;
}

void events_free(struct client_events *events)
{
	while (events->count)
		free(take_oldest(events));
	events->lost = 0;
}
