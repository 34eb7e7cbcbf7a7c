/* SPDX-License-Identifier: Apache-2.0 */
#include "engram_kernels.h"
#include "rows.h"

static enum engram_status invalid(struct engram_error *err, const char *field,
				  const char *what, const char *fix)
{
	engram_error_set(err, ENGRAM_EINVAL, "%s: %s", field, what);
	engram_error_fix(err, "%s", fix);
	engram_error_path(err, "%s", field);
	return ENGRAM_EINVAL;
}

static enum engram_status check(const struct engram_gate_args *args,
				const uint16_t *out, struct engram_error *err)
{
	const char *field = NULL;

	if (args->num_tokens < 0)
		return invalid(err, "num_tokens", "negative", "give 0 or more");
	if (!args->dim)
		return invalid(err, "dim", "zero", "give 1 or more");
	if (!args->num_tokens || !args->hc_mult)
		return ENGRAM_OK; /* nothing is read */
	if (!args->hidden)
		field = "hidden";
	else if (!args->q_weight)
		field = "q_weight";
	else if (!args->k_weight)
		field = "k_weight";
	else if (args->num_kv_tokens > 0 && !args->kv)
		field = "kv";
	else if (!out)
		field = "out";
	return field ? invalid(err, field, "NULL",
			       "pass it: the gate needs it for every token")
		     : ENGRAM_OK;
}

enum engram_status engram_cpu_gate(const struct engram_gate_args *args,
				   uint16_t *out, struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = check(args, out, err);
	fenv_t env;

	if (status)
		return status;
	engram_float_begin(&env);
	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t copy = 0; copy < args->hc_mult; copy++)
			fns->gate(args, token, copy, out);
	engram_float_end(&env);
	return ENGRAM_OK;
}
