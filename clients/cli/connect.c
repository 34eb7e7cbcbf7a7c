/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "cli.h"
#include "engram_wire.h"

const char *cli_socket(const struct cli *cli, char room[128])
{
	if (cli->socket)
		return cli->socket;
	if (cli->instance)
		snprintf(room, 128, "/run/engramd/%s.sock", cli->instance);
	else
		engram_wire_default_socket(room, "default");
	return room;
}

enum engram_status cli_connect(struct cli *cli)
{
	char room[128];
	struct engram_open_params params = {.name = "engramctl",
					    .socket = cli_socket(cli, room),
					    .call_timeout_ms = cli->timeout_ms};

	if (cli->client)
		return ENGRAM_OK;
	return engram_open(&params, &cli->client);
}

enum engram_status cli_call(struct cli *cli, const char *method, json_t *params,
			    json_t **result)
{
	enum engram_status status;
	char *text = NULL, *answer;

	*result = NULL;
	status = cli_connect(cli);
	if (!status && params)
		text = json_dumps(params, JSON_COMPACT);
	json_decref(params);
	if (status)
		return status;
	status = engram_call(cli->client, method, text, &answer);
	free(text);
	if (status)
		return status;
	*result = json_loads(answer, JSON_DECODE_ANY, NULL);
	engram_free(answer);
	return *result ? ENGRAM_OK : ENGRAM_ENOMEM;
}

enum engram_status cli_attach(struct cli *cli, const char *table,
			      int64_t layer_id, engram_table **out)
{
	struct engram_attach_params params = {.table = table};
	int32_t layer = (int32_t)layer_id;
	enum engram_status status = cli_connect(cli);

	if (status)
		return status;
	if (layer_id >= 0) {
		params.layers = &layer;
		params.num_layers = 1;
	}
	return engram_attach(cli->client, &params, out);
}
