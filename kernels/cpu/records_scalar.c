/* SPDX-License-Identifier: Apache-2.0 */
#include "records_body.h"

void engram_interleave_scalar(void *out, const void *codes, const void *scales,
			      size_t rows, size_t code_bytes,
			      size_t scale_bytes)
{
	interleave_rows(out, codes, scales, rows, code_bytes, scale_bytes);
}

void engram_stream_scalar(void *to, const void *from, size_t bytes)
{
	stream_bytes(to, from, bytes);
}
