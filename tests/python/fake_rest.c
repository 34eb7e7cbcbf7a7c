/* SPDX-License-Identifier: Apache-2.0 */
/* Launches that the tests of tests/cuda do not need and Python does. */
#include "engram_cuda_kernels.h"

enum engram_status engram_cuda_gate(const struct engram_gate_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err)
{
	(void)stream;
	return engram_cpu_gate(args, out, err);
}

enum engram_status engram_cuda_sp_rows(const struct engram_sp_rows_args *args,
				       uint16_t *out, engram_stream stream,
				       struct engram_error *err)
{
	(void)stream;
	return engram_cpu_sp_rows(args, out, err);
}
