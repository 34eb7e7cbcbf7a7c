/* SPDX-License-Identifier: Apache-2.0 */
/* Any file as a safetensors file.  The input is the JSON header; its length
 * is put before it and a little data behind it, unless the first byte is not
 * "{": then the input is the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(int fd, const void *data, size_t size)
{
	if (write(fd, data, size) != (ssize_t)size)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t tail[4096];
	const uint64_t len = size;
	struct engram_error err = {0};
	struct safetensors st;
	char path[64];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0)
		abort();
	if (size && data[0] == '{')
		put(fd, &len, sizeof(len));
	put(fd, data, size);
	if (size && data[0] == '{')
		put(fd, tail, sizeof(tail));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (safetensors_read(path, &st, &err) == ENGRAM_OK) {
		for (size_t i = 0; i < st.num_tensors; i++)
			if (st.tensors[i].offset + st.tensors[i].bytes >
			    st.identity.size)
				abort();
		safetensors_free(&st);
	} else if (err.status == ENGRAM_OK || !err.message[0]) {
		abort();
	}
	close(fd);
	return 0;
}
