/* SPDX-License-Identifier: Apache-2.0 */
/* The gate and the sequence-parallel rows. */
#include "shim_call.h"

enum engram_status engram_shim_gate(const struct engram_gate_args *args,
				    uint16_t *out, struct engram_error *err)
{
	struct engram_gate_args copy = *args;
	int64_t tokens = args->num_tokens, hc = args->hc_mult, dim = args->dim;
	int64_t kv_tokens =
		tokens < args->num_kv_tokens ? tokens : args->num_kv_tokens;
	struct shim_array hidden =
		SHIM_ARRAY3(args->hidden, tokens, hc, dim, args->hidden_stride);
	struct shim_array result =
		SHIM_ARRAY3(out, tokens, hc, dim, args->out_stride);
	struct shim_array kv =
		SHIM_ARRAY2(args->kv, kv_tokens, (hc + 1) * dim,
			    args->kv_stride[0], args->kv_stride[1]);
	struct shim_array q = SHIM_ARRAY2(args->q_weight, hc, dim,
					  args->q_stride[0], args->q_stride[1]);
	struct shim_array k = SHIM_ARRAY2(args->k_weight, hc, dim,
					  args->k_stride[0], args->k_stride[1]);
	struct shim_array mask =
		SHIM_ARRAY1(args->token_mask, kv_tokens, args->mask_stride);
	struct shim_call call;

	shim_begin(&call);
	if (out == args->hidden) {
		out = shim_inout(&call, &result);
		copy.hidden = out;
	} else {
		copy.hidden = shim_in(&call, &hidden);
		out = shim_out(&call, &result);
	}
	copy.kv = shim_in(&call, &kv);
	copy.q_weight = shim_in(&call, &q);
	copy.k_weight = shim_in(&call, &k);
	copy.token_mask = shim_in(&call, &mask);
	return shim_end(&call, engram_cuda_gate(&copy, out, call.stream, err),
			err);
}

enum engram_status engram_shim_sp_rows(const struct engram_sp_rows_args *args,
				       uint16_t *out, struct engram_error *err)
{
	struct engram_sp_rows_args copy = *args;
	int64_t tokens = args->num_tokens < 0 ? 0 : args->num_tokens;
	int64_t size = args->tp_size ? args->tp_size : 1;
	int64_t chunk = (tokens + size - 1) / size;
	struct shim_array gathered =
		SHIM_ARRAY1(args->gathered,
			    size * tokens * args->local_heads * args->dim, 1);
	struct shim_array result =
		SHIM_ARRAY1(out, chunk * args->total_heads * args->dim, 1);
	struct shim_call call;

	shim_begin(&call);
	copy.gathered = shim_in(&call, &gathered);
	out = shim_out(&call, &result);
	return shim_end(&call,
			engram_cuda_sp_rows(&copy, out, call.stream, err), err);
}
