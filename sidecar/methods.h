/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods of PROTOCOL.md; the table of them is in methods.c.  Parameters
 * have been checked against that table when a method runs.
 */
#ifndef ENGRAMD_METHODS_H
#define ENGRAMD_METHODS_H

#include "rpc.h"

#define RPC_METHOD_DECL(name) \
	enum engram_status name(struct rpc_call *call, struct engram_error *err)

/* methods_server.c */
RPC_METHOD_DECL(method_ping);
RPC_METHOD_DECL(method_version);
RPC_METHOD_DECL(method_discover);
RPC_METHOD_DECL(method_status);
RPC_METHOD_DECL(method_clients);
RPC_METHOD_DECL(method_client_name);
RPC_METHOD_DECL(method_subscribe);
RPC_METHOD_DECL(method_unsubscribe);
RPC_METHOD_DECL(method_config_get);
RPC_METHOD_DECL(method_config_validate);
RPC_METHOD_DECL(method_config_reload);
RPC_METHOD_DECL(method_log_set_level);
RPC_METHOD_DECL(method_shutdown);
/* methods_table.c */
RPC_METHOD_DECL(method_tables);
RPC_METHOD_DECL(method_load);
RPC_METHOD_DECL(method_unload);
RPC_METHOD_DECL(method_verify);
/* methods_reload.c */
RPC_METHOD_DECL(method_reload);
RPC_METHOD_DECL(method_publish);
RPC_METHOD_DECL(method_discard);
RPC_METHOD_DECL(method_rollback);
/* methods_attach.c */
RPC_METHOD_DECL(method_attach);
RPC_METHOD_DECL(method_detach);
RPC_METHOD_DECL(method_park);
/* methods_gather.c */
RPC_METHOD_DECL(method_gather_open);
RPC_METHOD_DECL(method_gather_bind);
RPC_METHOD_DECL(method_gather_close);
RPC_METHOD_DECL(method_gather_wake);
/* methods_job.c */
RPC_METHOD_DECL(method_job_get);
RPC_METHOD_DECL(method_job_wait);
RPC_METHOD_DECL(method_job_cancel);

/* Ahead of all that starts something: ENGRAM_EDRAINING once the sidecar
 * stops. */
enum engram_status method_stopping(const struct rpc_call *call,
				   struct engram_error *err);
/* {"job", "generation"}: a job that was started, or what there is already;
 * NULL and 0 are left out, or null. */
enum engram_status method_reply_job(struct rpc_call *call,
				    const struct job *job, uint64_t generation,
				    struct engram_error *err);
/* The table that the parameter `table` names; NULL with ENGRAM_ENOTFOUND. */
struct table *method_table(struct rpc_call *call, struct engram_error *err);
/* The lease that the parameter `lease` names; NULL with ENGRAM_ENOTFOUND. */
struct lease *method_lease(struct rpc_call *call, struct engram_error *err);
/* A job has ended: answer those who wait for it. */
void job_waits_answer(struct server *server, struct job *job);
/* A connection has ended: forget what it waits for. */
void job_waits_forget(struct client *client);

#endif
