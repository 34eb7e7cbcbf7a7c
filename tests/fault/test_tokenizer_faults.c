/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation and system call fails in turn while a token map is made of
 * a tokenizer.json: either there is an error that says so, or the map is what
 * it is without faults.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/segment_fixture.h"
#include "inject.h"
#include "token_map.h"

static const char text[] =
	"{\"added_tokens\": [{\"content\": \"<x>\"}, {\"content\": \"B\"}],"
	" \"decoder\": {\"type\": \"ByteLevel\"},"
	" \"model\": {\"type\": \"BPE\", \"merges\": [],"
	"  \"vocab\": {\"a\": 0, \"A\": 1, \"B\": 2, \"\u00e4\": 3, "
	"\"\u0120b\": 5}}}";
/* a and A, B and " b"; 4 is nobody's, so <x> is past the end. */
static const int32_t want[] = {0, 0, 1, 2, 3, 4};
#define TOKENS	   6u
#define COMPRESSED 5u

int main(void)
{
	char path[] = "/tmp/engram-tokenizer-faults-XXXXXX";
	const int fd = mkstemp(path);
	int fds, nth;

	CHECK(fd >= 0);
	CHECK(write(fd, text, sizeof(text) - 1) == sizeof(text) - 1);
	close(fd);
	fds = count_fds();
	for (nth = 1;; nth++) {
		struct engram_error err = {0};
		uint64_t len = 0, hash = 0;
		int32_t *map = NULL;
		enum engram_status status;
		bool failed;

		inject_arm(&(struct inject_plan){.nth = nth});
		status = token_map_read(path, COMPRESSED, "wanted:", &map, &len,
					&hash, &err);
		failed = inject_disarm();
		CHECK(count_fds() == fds);
		if (status) {
			CHECK(failed && !map && err.message[0] &&
			      err.status == status);
			continue;
		}
		CHECK(len == TOKENS && !memcmp(map, want, sizeof(want)));
		free(map);
		if (!failed)
			break;
	}
	CHECK(nth > 30); /* or the shim sees nothing */
	printf("%d calls failed in turn\n", nth - 1);
	unlink(path);
	return 0;
}
