/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "commands.h"

const struct cli_command *const cli_commands[] = {
	&cmd_status,   &cmd_tables,   &cmd_load,     &cmd_reload, &cmd_publish,
	&cmd_discard,  &cmd_rollback, &cmd_unload,   &cmd_verify, &cmd_clients,
	&cmd_events,   &cmd_rpc,      &cmd_health,   &cmd_config, &cmd_hash,
	&cmd_rows,     &cmd_lookup,   &cmd_tokmap,   &cmd_bench,  &cmd_inspect,
	&cmd_manifest, &cmd_prune,    &cmd_shutdown, NULL,
};

int main(int argc, char **argv)
{
	struct cli cli = {0};
	enum cli_exit code;
	bool done;

	code = cli_parse(&cli, argc, argv, &done);
	if (!done)
		code = cli.command->run(&cli);
	engram_close(cli.client);
	if (fflush(stdout) || ferror(stdout)) {
		fputs("engramctl: stdout: write failed\n", stderr);
		return CLI_FAILED;
	}
	return code;
}
