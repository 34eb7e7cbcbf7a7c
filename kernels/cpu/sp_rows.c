/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engram_kernels.h"
#include "engram_math.h"

static enum engram_status check(const struct engram_sp_rows_args *args,
				const uint16_t *out, struct engram_error *err)
{
	int nothing = !args->num_tokens || !args->total_heads || !args->dim;

	if (!nothing && (!args->gathered || !out)) {
		const char *field = out ? "gathered" : "out";

		engram_error_set(err, ENGRAM_EINVAL, "%s: NULL", field);
		engram_error_fix(err, "pass it, or zero tokens");
		engram_error_path(err, "%s", field);
		return ENGRAM_EINVAL;
	}
	if (args->num_tokens >= 0 && args->tp_rank < args->tp_size &&
	    (uint64_t)args->local_heads * args->tp_size >= args->total_heads)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL,
			 "rank %u of %u, %u heads each, %u in all, %lld tokens",
			 args->tp_rank, args->tp_size, args->local_heads,
			 args->total_heads, (long long)args->num_tokens);
	engram_error_fix(err, "give a rank below the size, and as many local "
			      "heads as the lookup had");
	return ENGRAM_EINVAL;
}

enum engram_status engram_cpu_sp_rows(const struct engram_sp_rows_args *args,
				      uint16_t *out, struct engram_error *err)
{
	enum engram_status status = check(args, out, err);
	size_t bytes = args->dim * sizeof(*out);
	int64_t chunk, first;

	if (status)
		return status;
	chunk = args->num_tokens / args->tp_size +
		(args->num_tokens % args->tp_size != 0);
	first = args->tp_rank * chunk;
	for (int64_t token = first; token < first + chunk; token++)
		for (uint32_t head = 0; head < args->total_heads; head++) {
			int64_t rank = head / args->local_heads;
			int64_t local = head % args->local_heads;
			int64_t row = (rank * args->num_tokens + token) *
					      args->local_heads +
				      local;

			if (token >= args->num_tokens)
				memset(out, 0, bytes);
			else
				memcpy(out,
				       args->gathered +
					       ENGRAM_MUTATE(
						       55, row,
						       token * args->local_heads *
								       args->tp_size +
							       head) *
						       args->dim,
				       bytes);
			out += args->dim;
		}
	return ENGRAM_OK;
}
