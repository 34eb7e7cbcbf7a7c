/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "rows.h"

enum engram_status engram_cpu_gate(const struct engram_gate_args *args,
				   uint16_t *out, struct engram_error *err)
{
	const struct engram_row_fns *fns = engram_row_fns();
	enum engram_status status = engram_check_gate(args, out, err);
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
