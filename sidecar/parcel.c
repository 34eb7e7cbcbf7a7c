/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "parcel.h"
#include "rpc.h"

void parcel_free(void *arg)
{
	struct parcel *parcel = arg;

	while (parcel->num_opened)
		close(parcel->fds[parcel->num_opened--]);
	generation_put(parcel->gen);
	free(parcel);
}

static enum engram_status add_writable(struct parcel *parcel,
				       const struct generation_layer *layer,
				       struct engram_error *err)
{
	enum engram_status status;
	int fd;

	status = engram_segment_reopen_writable(layer->writer, &fd, err);
	if (!status) {
		parcel->fds[++parcel->num_opened] = fd;
		return ENGRAM_OK;
	}
	engram_error_context(err, "writable");
	engram_error_path(err, "writable");
	if (status == ENGRAM_EUNSUPPORTED)
		engram_error_fix(err, "set memory.backing of the configuration "
				      "to \"shm\" or \"hugetlbfs\", or attach "
				      "read-only");
	return status;
}

enum engram_status parcel_new(const struct lease *lease, int control_fd,
			      struct parcel **out, struct engram_error *err)
{
	struct parcel *parcel =
		malloc(sizeof(*parcel) + (lease->num_layers + 1) * sizeof(int));
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	*out = NULL;
	if (!parcel)
		return rpc_no_memory(err);
	parcel->gen = lease->gen;
	generation_get(parcel->gen);
	parcel->num_opened = 0;
	parcel->fds[0] = control_fd;
	for (i = 0; i < lease->num_layers && !status; i++) {
		const struct generation_layer *layer =
			&lease->gen->layers[lease->layers[i].index];

		if (lease->writable)
			status = add_writable(parcel, layer, err);
		else
			parcel->fds[i + 1] = layer->fd;
	}
	if (status)
		parcel_free(parcel);
	else
		*out = parcel;
	return status;
}
