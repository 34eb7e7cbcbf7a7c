/* SPDX-License-Identifier: Apache-2.0 */
/* The main of a CPU test that runs on the GPU. */
#include <stdio.h>

#include "shim.h"
#include "shim_names.h"
#undef main

int main(int argc, char **argv)
{
	int failed = 0;

	engram_shim_need_device();
	if (engram_shim_options.ring)
		return test_main(argc, argv);
	failed |= test_main(argc, argv);
	puts("the same, lookups through a ring");
	engram_shim_options.ring = ENGRAM_SHIM_HOST;
	failed |= test_main(argc, argv);
	puts("the same, lookups through a ring and by the device");
	engram_shim_options.ring = ENGRAM_SHIM_HYBRID;
	failed |= test_main(argc, argv);
	puts("the same, lookups through a cache");
	engram_shim_options.ring = ENGRAM_SHIM_SIEVE;
	failed |= test_main(argc, argv);
	return failed;
}
