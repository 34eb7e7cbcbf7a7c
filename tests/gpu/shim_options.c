/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim_call.h"

struct engram_shim_options engram_shim_options;

static const struct {
	const char *name;
	int registered, descriptor;
} ways[] = {
	[ENGRAM_ISA_AUTO] = {"device", 0, 0},
	[ENGRAM_ISA_SCALAR] = {"device", 0, 0},
	[ENGRAM_ISA_AVX2] = {"host", 1, 0},
	[ENGRAM_ISA_AVX512] = {"descr", 1, 1},
};

enum engram_status engram_shim_set_isa(enum engram_isa isa)
{
	if ((unsigned int)isa >= sizeof(ways) / sizeof(ways[0]))
		return ENGRAM_EUNSUPPORTED;
	engram_shim_options.registered = ways[isa].registered;
	engram_shim_options.descriptor = ways[isa].descriptor;
	return ENGRAM_OK;
}

const char *engram_shim_isa_name(enum engram_isa isa)
{
	return ways[isa].name;
}

static void set_ring(const char *name)
{
	static const char *const names[] = {"", "host", "hybrid", "sieve"};

	for (int i = ENGRAM_SHIM_HOST; name && i <= ENGRAM_SHIM_SIEVE; i++)
		if (!strcmp(name, names[i])) {
			engram_shim_options.ring = i;
			return;
		}
	if (!name)
		return;
	fprintf(stderr, "ENGRAM_SHIM_RING=%s: host, hybrid or sieve\n", name);
	exit(2);
}

const char *engram_shim_no_device(void)
{
	int count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);

	engram_shim_options.no_poison = getenv("ENGRAM_SHIM_NO_POISON") != NULL;
	set_ring(getenv("ENGRAM_SHIM_RING"));
	/* The latter: there is no driver at all. */
	if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
		return cudaGetErrorString(error);
	SHIM_CUDA(error);
	return count ? NULL : "the driver counts 0";
}

void engram_shim_need_device(void)
{
	const char *why = engram_shim_no_device();

	if (!why)
		return;
	printf("skip: no CUDA device: %s\n", why);
	exit(77);
}
