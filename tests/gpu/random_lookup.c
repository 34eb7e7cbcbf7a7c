/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup, raw lookup and decode: the bits of the CPU backend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#include "random_rows.h"

#define FILL 0x3c
/* What the counter of misses holds beforehand. */
#define MISSES 7

static void *filled(size_t bytes)
{
	return memset(need(bytes), FILL, bytes);
}

static int same(const void *got, const void *want, size_t bytes, size_t item,
		const char *what, char *why)
{
	const uint8_t *a = got, *b = want;

	for (size_t i = 0; i < bytes; i++) {
		if (a[i] == b[i])
			continue;
		snprintf(why, WHY,
			 "%s: byte %zu of item %zu of %zu is 0x%02x, not "
			 "0x%02x",
			 what, i % item, i / item, bytes / item, a[i], b[i]);
		return 0;
	}
	return 1;
}

static int failed(enum engram_status status, const char *what,
		  const struct engram_error *err, char *why)
{
	if (status)
		snprintf(why, WHY, "%s: %s: %s", what,
			 engram_status_symbol(status), err->message);
	return status != ENGRAM_OK;
}

static int same_misses(uint64_t got, uint64_t want, char *why)
{
	if (got != want)
		snprintf(why, WHY, "%llu misses, not %llu",
			 (unsigned long long)got, (unsigned long long)want);
	return got == want;
}

/* Says the geometry when the case failed. */
static int end_case(struct rows_case *c, int ok, char *why)
{
	if (!ok)
		rows_case_say(c, why);
	rows_case_free(c);
	return ok ? 0 : -1;
}

int random_lookup(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct rows_case c;
	struct engram_lookup_args cpu;
	uint64_t misses = MISSES, cpu_misses = MISSES;
	struct engram_error err;
	uint16_t *out, *want;
	size_t bytes;
	int ok;

	rows_case_make(&c, &rng);
	cpu = c.args;
	if (rng_percent(&rng, 80)) {
		c.args.misses = &misses;
		cpu.misses = &cpu_misses;
	}
	bytes = (size_t)c.args.num_tokens * c.args.local_heads * c.rows.dim * 2;
	out = filled(bytes);
	want = filled(bytes);
	ok = !failed(engram_cpu_lookup(&c.rows, &cpu, want, &err), "CPU", &err,
		     why) &&
	     !failed(engram_shim_lookup(&c.rows, &c.args, out, &err), "CUDA",
		     &err, why) &&
	     same(out, want, bytes, c.rows.dim * 2, "rows", why) &&
	     same_misses(misses, cpu_misses, why);
	free(out);
	free(want);
	return end_case(&c, ok, why);
}

static int compare_raw(const struct rows_case *c, struct engram_raw_out *got,
		       struct engram_raw_out *want, size_t scale_bytes,
		       char *why)
{
	struct engram_lookup_args cpu = c->args, cuda = c->args;
	uint64_t misses = MISSES, cpu_misses = MISSES;
	size_t bytes = (size_t)(c->args.num_tokens * c->args.local_heads *
				c->code_bytes);
	struct engram_error err;

	cuda.misses = &misses;
	cpu.misses = &cpu_misses;
	if (failed(engram_cpu_lookup_raw(&c->rows, &cpu, want, &err), "CPU",
		   &err, why) ||
	    failed(engram_shim_lookup_raw(&c->rows, &cuda, got, &err), "CUDA",
		   &err, why))
		return 0;
	return same(got->codes, want->codes, bytes, (size_t)c->code_bytes,
		    "codes", why) &&
	       (!got->scales ||
		same(got->scales, want->scales, scale_bytes, 512,
		     got->scale_layout ? "scales, 128x4" : "scales", why)) &&
	       same_misses(misses, cpu_misses, why);
}

int random_raw(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct rows_case c;
	struct engram_raw_out got = {0}, want;
	size_t bytes, scale_bytes;
	int ok;

	rows_case_make(&c, &rng);
	got.scale_layout = rng_percent(&rng, 50) ? ENGRAM_SCALES_F8_128X4
						 : ENGRAM_SCALES_PLAIN;
	want = got;
	bytes = (size_t)(c.args.num_tokens * c.args.local_heads * c.code_bytes);
	scale_bytes =
		engram_raw_scale_bytes(&c.rows, c.args.num_tokens,
				       c.args.local_heads, got.scale_layout);
	got.codes = filled(bytes);
	want.codes = filled(bytes);
	if (rng_percent(&rng, 85)) {
		got.scales = filled(scale_bytes);
		want.scales = filled(scale_bytes);
	}
	ok = compare_raw(&c, &got, &want, scale_bytes, why);
	free(got.codes);
	free(want.codes);
	free(got.scales);
	free(want.scales);
	return end_case(&c, ok, why);
}

int random_decode(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct engram_error err;
	struct rows_case c;
	uint16_t *out, *want;
	int64_t count;
	size_t bytes;
	int ok;

	rows_case_make(&c, &rng);
	count = c.rows.row_end - c.rows.row_begin;
	bytes = (size_t)count * c.rows.dim * 2;
	out = filled(bytes);
	want = filled(bytes);
	ok = !failed(engram_cpu_decode(&c.rows, count, want, &err), "CPU", &err,
		     why) &&
	     !failed(engram_shim_decode(&c.rows, count, out, &err), "CUDA",
		     &err, why) &&
	     same(out, want, bytes, c.rows.dim * 2, "rows", why);
	free(out);
	free(want);
	return end_case(&c, ok, why);
}
