/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engram_kernels.h"
#include "order.h"

enum engram_status engram_cpu_order(const struct engram_order *order,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err)
{
	(void)stream;
	(void)err;
	for (int64_t i = 0; i < order->count; i++) {
		int64_t token = order->first + i;

		for (uint32_t rank = 0; rank < order->runs; rank++) {
			size_t length =
				(size_t)engram_order_heads(order, rank) *
				order->dim;
			int64_t from = engram_order_source(order, token, rank);

			if (ENGRAM_MUTATE(58, token >= order->num_tokens, 0))
				memset(out, 0, length * sizeof(*out));
			else
				memcpy(out, order->gathered + from * order->dim,
				       length * sizeof(*out));
			out += length;
		}
	}
	return ENGRAM_OK;
}

enum engram_status engram_cpu_sp_rows(const struct engram_sp_rows_args *args,
				      uint16_t *out, struct engram_error *err)
{
	struct engram_order order;
	enum engram_status status = engram_order_of_sp(args, out, &order, err);

	return status ? status : engram_cpu_order(&order, out, NULL, err);
}
