/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMCTL_COMMANDS_H
#define ENGRAMCTL_COMMANDS_H

#include "cli.h"

/* cmd_show.c */
extern const struct cli_command cmd_status, cmd_tables, cmd_clients;
/* cmd_control.c */
extern const struct cli_command cmd_health, cmd_config, cmd_rpc, cmd_events;
/* cmd_jobs.c */
extern const struct cli_command cmd_load, cmd_reload, cmd_unload, cmd_verify;
/* cmd_generations.c */
extern const struct cli_command cmd_publish, cmd_discard, cmd_rollback;
/* cmd_rows.c */
extern const struct cli_command cmd_hash, cmd_rows, cmd_lookup;
extern const struct cli_command cmd_tokmap; /* cmd_tokmap.c */
extern const struct cli_command cmd_bench;  /* cmd_bench.c */
/* cmd_inspect.c */
extern const struct cli_command cmd_inspect, cmd_manifest;
extern const struct cli_command cmd_prune;    /* cmd_prune.c */
extern const struct cli_command cmd_shutdown; /* cmd_shutdown.c */

#endif
