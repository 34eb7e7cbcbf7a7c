/* SPDX-License-Identifier: Apache-2.0 */
#include "json_write.h"

#include <stdlib.h>

bool json_write(const json_t *value, FILE *out)
{
	/* Not json_dumpf: it does not tell when it had no memory. */
	const size_t flags = JSON_INDENT(2);
	size_t size = json_dumpb(value, NULL, 0, flags);
	char *text = size ? malloc(size) : NULL;
	bool good = text && json_dumpb(value, text, size, flags) == size;

	if (good)
		good = fwrite(text, 1, size, out) == size &&
		       fputc('\n', out) == '\n';
	free(text);
	return good;
}
