/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a configuration: parsed or refused with a message and a
 * status, nothing leaked. */
#include <stdlib.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config *config = NULL;
	struct engram_error err = {0};

	if (config_parse("fuzz.json", (const char *)data, size, &config,
			 &err) == ENGRAM_OK)
		config_free(config);
	else if (err.status == ENGRAM_OK || !err.message[0])
		abort();
	return 0;
}
