/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include "check.h"

/* Whether gathered rows have more bytes than fit. */
static int too_many(int64_t num_tokens, uint32_t size, uint32_t local_heads,
		    uint32_t dim)
{
	int64_t bytes = num_tokens;

	return __builtin_mul_overflow(bytes, (int64_t)size, &bytes) ||
	       __builtin_mul_overflow(bytes, (int64_t)local_heads, &bytes) ||
	       __builtin_mul_overflow(bytes, (int64_t)dim * 2, &bytes);
}

static enum engram_status check_shape(const struct engram_sp_rows_args *args,
				      struct engram_error *err)
{
	if (args->num_tokens >= 0 && args->tp_rank < args->tp_size &&
	    (uint64_t)args->local_heads * args->tp_size >= args->total_heads &&
	    !too_many(args->num_tokens, args->tp_size, args->local_heads,
		      args->dim))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL,
			 "rank %u of %u, %u heads each, %u in all, %lld tokens",
			 args->tp_rank, args->tp_size, args->local_heads,
			 args->total_heads, (long long)args->num_tokens);
	engram_error_fix(err, "give a rank below the size, and as many local "
			      "heads as the lookup had");
	return ENGRAM_EINVAL;
}

static int nothing(const struct engram_sp_rows_args *args)
{
	return !args->num_tokens || !args->total_heads || !args->dim;
}

/* Every token; of a shape that was checked. */
static struct engram_order order_all(const struct engram_sp_rows_args *args)
{
	struct engram_order order = {
		.gathered = args->gathered,
		.num_tokens = args->num_tokens,
		.size = args->tp_size,
		.local_heads = args->local_heads,
		.total_heads = args->total_heads,
		.dim = args->dim,
	};

	if (nothing(args))
		return order;
	order.count = args->num_tokens;
	order.runs = args->total_heads / args->local_heads +
		     (args->total_heads % args->local_heads != 0);
	return order;
}

/* The tokens of one rank. */
static struct engram_order order_share(const struct engram_sp_rows_args *args)
{
	struct engram_order order = order_all(args);

	order.count = order.count / args->tp_size +
		      (order.count % args->tp_size != 0);
	order.first = args->tp_rank * order.count;
	return order;
}

enum engram_status engram_order_of_sp(const struct engram_sp_rows_args *args,
				      const uint16_t *out,
				      struct engram_order *order,
				      struct engram_error *err)
{
	enum engram_status status;

	if (!nothing(args) && !out)
		return engram_invalid(err, "out", "NULL",
				      "pass it, or zero tokens");
	if (!nothing(args) && !args->gathered)
		return engram_invalid(err, "gathered", "NULL",
				      "pass it, or zero tokens");
	status = check_shape(args, err);
	if (!status)
		*order = order_share(args);
	return status;
}

static enum engram_status check_gather(const struct engram_comm *comm,
				       const struct engram_tp_gather_args *args,
				       const struct engram_sp_rows_args *shape,
				       const uint16_t *out,
				       struct engram_error *err)
{
	enum engram_status status = check_shape(shape, err);

	if (status || nothing(shape))
		return status;
	if (!args->rows)
		return engram_invalid(err, "rows", "NULL",
				      "pass it, or zero tokens");
	if (!out)
		return engram_invalid(err, "out", "NULL",
				      "pass it, or zero tokens");
	if (comm->size > 1 && !args->gathered)
		return engram_invalid(
			err, "gathered", "NULL",
			"with more than one rank, give room for the "
			"rows of all of them");
	if (comm->size > 1 && !comm->all_gather)
		return engram_invalid(err, "comm.all_gather", "NULL",
				      "with more than one rank, give one");
	if (out != args->rows ||
	    (comm->size == 1 && args->local_heads == args->total_heads))
		return ENGRAM_OK;
	return engram_invalid(err, "out", "the same as rows",
			      "give an array of its own: only one rank without "
			      "padded heads may leave its rows in place");
}

enum engram_status engram_gather_by(engram_order_fn *bring,
				    const struct engram_comm *comm,
				    const struct engram_tp_gather_args *args,
				    uint16_t *out, engram_stream stream,
				    struct engram_error *err)
{
	struct engram_sp_rows_args shape = {
		.gathered = args->rows,
		.num_tokens = args->num_tokens,
		.local_heads = args->local_heads,
		.total_heads = args->total_heads,
		.dim = args->dim,
	};
	struct engram_order order;
	enum engram_status status;

	if (!comm)
		return engram_invalid(err, "comm", "NULL",
				      "for a single rank, give one of size 1");
	shape.tp_rank = comm->rank;
	shape.tp_size = comm->size;
	status = check_gather(comm, args, &shape, out, err);
	if (status || nothing(&shape) || out == args->rows)
		return status;
	if (comm->size > 1) {
		size_t bytes = (size_t)args->num_tokens * args->local_heads *
			       args->dim * sizeof(*out);

		status = comm->all_gather(comm->context, args->rows,
					  args->gathered, bytes, stream, err);
		if (status) {
			engram_error_context(err,
					     "gathering heads, rank %u of %u",
					     comm->rank, comm->size);
			return status;
		}
		shape.gathered = args->gathered;
	}
	order = args->sequence_parallel ? order_share(&shape)
					: order_all(&shape);
	return bring(&order, out, stream, err);
}
