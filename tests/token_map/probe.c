/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sidecar makes of tokenizers, to compare with the library.
 *	token_map_probe FILE	the token map of a tokenizer.json as JSON
 *	token_map_probe --fold	a line for each code point that its fold does
 *				not leave alone: both in hexadecimal
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"
#include "unicode_fold.h"

static int print_folds(void)
{
	for (int32_t c = 0; c <= 0x10ffff; c++) {
		int32_t out[UNICODE_FOLD_MAX];
		size_t n;

		if (c >= 0xd800 && c <= 0xdfff)
			continue;
		n = unicode_fold(c, out);
		if (n == 1 && out[0] == c)
			continue;
		printf("%" PRIx32, (uint32_t)c);
		for (size_t i = 0; i < n; i++)
			printf(" %" PRIx32, (uint32_t)out[i]);
		putchar('\n');
	}
	return 0;
}

static enum engram_status print_map(const char *file, struct engram_error *err)
{
	struct tokenizer tokenizer = {0};
	struct json_source src;
	enum engram_status status;
	uint64_t distinct = 0;
	int32_t *map = NULL;

	status = json_source_read(&src, file, 256u << 20, ENGRAM_ECHECKPOINT,
				  err);
	if (status)
		return status;
	status = tokenizer_read(&src, &tokenizer, err);
	if (!status)
		status = tokenizer_check_beside(&src, &tokenizer, file, err);
	if (!status)
		status = tokenizer_map(&tokenizer, &map, &distinct, err);
	if (!status) {
		printf("{\"compressed\": %" PRIu64 ", \"token_map\": [",
		       distinct);
		for (uint64_t i = 0; i < tokenizer.len; i++)
			printf("%s%" PRId32, i ? ", " : "", map[i]);
		puts("]}");
	}
	free(map);
	tokenizer_free(&tokenizer);
	json_source_free(&src);
	return status;
}

int main(int argc, char **argv)
{
	struct engram_error err = {0};

	if (argc != 2) {
		fputs("usage: token_map_probe FILE | --fold\n", stderr);
		return 2;
	}
	if (!strcmp(argv[1], "--fold"))
		return print_folds();
	if (!print_map(argv[1], &err))
		return 0;
	printf("status: %s\npath: %s\nmessage: %s\nfix: %s\n",
	       engram_status_name(err.status), err.path, err.message, err.fix);
	return 1;
}
