/* SPDX-License-Identifier: Apache-2.0 */
/* The main of a CPU test that runs on the GPU. */
#include "shim.h"
#include "shim_names.h"
#undef main

int main(int argc, char **argv)
{
	engram_shim_need_device();
	return test_main(argc, argv);
}
