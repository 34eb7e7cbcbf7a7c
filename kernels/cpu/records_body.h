/* SPDX-License-Identifier: Apache-2.0 */
#include "records.h"
#include "stream.h"

/* Inlined with constants for the common shape: moves without a loop. */
static inline void interleave(uint8_t *out, const uint8_t *codes,
			      const uint8_t *scales, size_t rows,
			      size_t code_bytes, size_t scale_bytes)
{
	for (size_t i = 0; i < rows; i++) {
		memcpy(out, codes, code_bytes);
		memcpy(out + code_bytes, scales, scale_bytes);
		out += code_bytes + scale_bytes;
		codes += code_bytes;
		scales += scale_bytes;
	}
}

static void interleave_rows(void *out, const void *codes, const void *scales,
			    size_t rows, size_t code_bytes, size_t scale_bytes)
{
	if (!scale_bytes)
		memcpy(out, codes, rows * code_bytes);
	else if (code_bytes == 256 && scale_bytes == 8)
		interleave(out, codes, scales, rows, 256, 8);
	else
		interleave(out, codes, scales, rows, code_bytes, scale_bytes);
}

static void stream_bytes(void *to, const void *from, size_t bytes)
{
	const size_t off = (uintptr_t)to % STREAM_LINE;
	size_t head = off ? STREAM_LINE - off : 0;
	size_t lines;

	if (head > bytes)
		head = bytes;
	lines = (bytes - head) / STREAM_LINE * STREAM_LINE;
	memcpy(to, from, head);
	stream((uint8_t *)to + head, (const uint8_t *)from + head, lines);
	head += lines;
	memcpy((uint8_t *)to + head, (const uint8_t *)from + head,
	       bytes - head);
}
