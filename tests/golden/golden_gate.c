/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_kernels.h"
#include "gate_close.h"
#include "golden.h"

/* A copy with garbage behind it, where only a missing guard would read. */
static void *with_garbage(const struct golden_case *c, const void *data,
			  size_t size, size_t more, int garbage)
{
	char *copy = malloc(size + more + 1);

	if (!copy)
		golden_die(c->path, "out of memory", NULL);
	memcpy(copy, data, size);
	memset(copy + size, garbage, more);
	return copy;
}

static int compare(const struct engram_gate_args *args, const uint16_t *got,
		   const uint16_t *want, char *why)
{
	int64_t count = args->num_tokens * args->hc_mult * args->dim;

	for (int64_t i = 0; i < count; i++) {
		if (gate_close(got[i], want[i], args->hidden[i]))
			continue;
		snprintf(why, GOLDEN_WHY,
			 "element %lld is %g, not %g (hidden %g)", (long long)i,
			 gate_widen(got[i]), gate_widen(want[i]),
			 gate_widen(args->hidden[i]));
		return -1;
	}
	return 0;
}

static void read_gate(const struct golden_case *c,
		      struct engram_gate_args *args)
{
	int64_t shape[3], dim;

	*args = (struct engram_gate_args){
		.hidden = golden_need(c, "hidden_states", "BF16", 3, shape),
		.num_kv_tokens = golden_int(c, "num_kv_tokens"),
		.eps = (float)golden_real(c, "eps"),
		.clamp = (float)golden_real(c, "clamp_value"),
	};
	dim = shape[2];
	args->num_tokens = shape[0];
	args->hc_mult = (uint32_t)shape[1];
	args->dim = (uint32_t)dim;
	args->hidden_stride[0] = args->out_stride[0] = shape[1] * dim;
	args->hidden_stride[1] = args->out_stride[1] = dim;
	args->hidden_stride[2] = args->out_stride[2] = 1;
	args->q_weight = golden_need(c, "q_weight", "BF16", 2, shape);
	args->k_weight = golden_need(c, "k_weight", "BF16", 2, shape);
	args->q_stride[0] = args->k_stride[0] = dim;
	args->q_stride[1] = args->k_stride[1] = 1;
}

int golden_gate(const struct golden_case *c, char *why)
{
	struct engram_gate_args args;
	struct engram_error err;
	int64_t shape[3], kv_shape[2];
	const uint16_t *want;
	uint16_t *kv, *out;
	uint8_t *mask;
	size_t missing, count;
	int rc;

	read_gate(c, &args);
	want = golden_need(c, "expected", "BF16", 3, shape);
	count = (size_t)(shape[0] * shape[1] * shape[2]);
	missing = args.num_tokens > args.num_kv_tokens
			  ? (size_t)(args.num_tokens - args.num_kv_tokens)
			  : 0;

	kv = golden_need(c, "kv", "BF16", 2, kv_shape);
	args.kv_stride[0] = kv_shape[1];
	args.kv_stride[1] = 1;
	kv = with_garbage(c, kv, (size_t)(kv_shape[0] * kv_shape[1]) * 2,
			  missing * (size_t)kv_shape[1] * 2, 0x41);
	args.kv = kv;
	mask = golden_tensor(c, "token_mask", "BOOL", 1, shape);
	if (mask)
		mask = with_garbage(c, mask, (size_t)shape[0], missing, 1);
	args.token_mask = mask;
	args.mask_stride = 1;

	out = malloc(count * sizeof(*out));
	if (!out)
		golden_die(c->path, "out of memory", NULL);
	memset(out, 0xa5, count * sizeof(*out));
	rc = engram_cpu_gate(&args, out, &err);
	if (rc)
		snprintf(why, GOLDEN_WHY, "%s", err.message);
	else
		rc = compare(&args, out, want, why);
	free(out);
	free(mask);
	free(kv);
	return rc ? -1 : 0;
}
