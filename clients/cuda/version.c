/* SPDX-License-Identifier: Apache-2.0 */
#include "engram_cuda.h"

const char *engram_cuda_version(void)
{
	return ENGRAM_VERSION_STRING;
}
