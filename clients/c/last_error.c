/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "client.h"

/* One for each thread: handles are shared by threads, errors are not. */
static _Thread_local struct engram_error last_error;

struct engram_error *client_error(void)
{
	return &last_error;
}

enum engram_status engram_set_last_error(const struct engram_error *err)
{
	last_error = *err;
	return err->status;
}

const struct engram_error *engram_last_error(void)
{
	return &last_error;
}

const char *engram_version(void)
{
	return ENGRAM_VERSION_STRING;
}

void engram_free(void *text)
{
	free(text);
}
