/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a tokenizer.json: refused with a message, or a map in which
 * every compressed id appears first after all smaller ones. */
#include <stdlib.h>

#include "tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum engram_status map_it(const struct json_source *src,
				 struct engram_error *err)
{
	struct tokenizer tokenizer;
	enum engram_status status = tokenizer_read(src, &tokenizer, err);
	uint64_t distinct;
	int32_t *map, next = 0;

	if (status)
		return status;
	status = tokenizer_map(&tokenizer, &map, &distinct, err);
	for (uint64_t i = 0; !status && i < tokenizer.len; i++) {
		if (map[i] < 0 || map[i] > next)
			abort();
		next += map[i] == next;
	}
	if (!status && (uint64_t)next != distinct)
		abort();
	if (!status)
		free(map);
	tokenizer_free(&tokenizer);
	return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct engram_error err = {0};
	struct json_source src;
	enum engram_status status;

	status = json_source_parse(&src, "tokenizer.json", (const char *)data,
				   size, ENGRAM_ECHECKPOINT, &err);
	if (!status) {
		status = map_it(&src, &err);
		json_source_free(&src);
	}
	if (status && !err.message[0])
		abort();
	return 0;
}
