/* SPDX-License-Identifier: Apache-2.0 */
#include "engram_kernels.h"
#include "rows.h"

static enum engram_status check(const struct engram_gate_args *args,
				struct engram_error *err)
{
	const char *field = NULL;

	if (!args->dim)
		field = "dim";
	else if (args->num_tokens <= 0 || !args->hc_mult)
		return ENGRAM_OK; /* nothing is read */
	else if (!args->hidden)
		field = "hidden";
	else if (!args->q_weight)
		field = "q_weight";
	else if (!args->k_weight)
		field = "k_weight";
	else if (args->num_kv_tokens > 0 && !args->kv)
		field = "kv";
	if (!field)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL, "%s: zero", field);
	engram_error_fix(err, "set it: the gate reads it for every token");
	engram_error_path(err, "%s", field);
	return ENGRAM_EINVAL;
}

enum engram_status engram_cpu_gate(const struct engram_gate_args *args,
				   uint16_t *out, struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = check(args, err);

	if (status)
		return status;
	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t copy = 0; copy < args->hc_mult; copy++)
			fns->gate(args, token, copy, out);
	return ENGRAM_OK;
}
