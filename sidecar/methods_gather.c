/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "gather.h"
#include "lease.h"
#include "methods.h"

static struct gather_entry *method_ring(struct rpc_call *call,
					struct engram_error *err)
{
	uint64_t id = (uint64_t)rpc_integer(call, "ring", 0);
	struct gather_entry *entry =
		gather_find(&call->server->gather, call->client, id);

	if (entry)
		return entry;
	engram_error_set(err, ENGRAM_ENOTFOUND,
			 "this connection has no ring %llu",
			 (unsigned long long)id);
	engram_error_fix(err, "open one with gather.open");
	engram_error_path(err, "ring");
	return NULL;
}

RPC_METHOD_DECL(method_gather_open)
{
	int fd = conn_take_fd(call->client->conn);
	struct lease *lease = method_lease(call, err);
	enum engram_status status = ENGRAM_ENOTFOUND;
	struct gather_entry *entry;

	if (lease && fd < 0) {
		status =
			engram_error_set(err, ENGRAM_EINVAL,
					 "no descriptor came with gather.open");
		engram_error_fix(err, "send that of the ring's memory file "
				      "with it (SCM_RIGHTS)");
	} else if (lease) {
		status = gather_open(&call->server->gather, call->client, fd,
				     lease, &entry, err);
	}
	if (fd >= 0)
		close(fd);
	if (status)
		return status;
	call->result = json_pack(
		"{s:I, s:I}", "ring", (json_int_t)entry->id, "threads",
		(json_int_t)call->server->gather.pool.num_workers);
	if (call->result)
		return ENGRAM_OK;
	gather_close(&call->server->gather, entry, NULL);
	return rpc_no_memory(err);
}

RPC_METHOD_DECL(method_gather_bind)
{
	struct gather_entry *entry = method_ring(call, err);
	struct lease *lease = entry ? method_lease(call, err) : NULL;

	if (!lease)
		return ENGRAM_ENOTFOUND;
	return gather_bind(&call->server->gather, entry, lease, err);
}

RPC_METHOD_DECL(method_gather_close)
{
	struct gather_entry *entry = method_ring(call, err);

	if (!entry)
		return ENGRAM_ENOTFOUND;
	gather_close(&call->server->gather, entry, call->id);
	call->deferred = true;
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_gather_wake)
{
	(void)err;
	if (call->server->gather.running)
		gather_pool_wake(&call->server->gather.pool);
	return ENGRAM_OK;
}
