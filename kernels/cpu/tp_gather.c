/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

enum engram_status engram_cpu_tp_gather(
	const struct engram_comm *comm,
	const struct engram_tp_gather_args *args, uint16_t *out,
	struct engram_error *err)
{
	return engram_gather_by(engram_cpu_order, comm, args, out, NULL, err);
}
