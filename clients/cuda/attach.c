/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "launch.h"
#include "table.h"

static enum engram_status attribute(enum cudaDeviceAttr which, int device,
				    int *out, struct engram_error *err)
{
	return engram_cuda_status(cudaDeviceGetAttribute(out, which, device),
				  "cudaDeviceGetAttribute", err);
}

/* Can the device read host memory where the host has it, and does it take
 * memory that the host may not write? */
static enum engram_status check_device(struct engram_cuda_table *t,
				       struct engram_error *err)
{
	int registers = 0, same_address = 0;
	enum engram_status status;

	status = attribute(cudaDevAttrHostRegisterSupported, t->device,
			   &registers, err);
	if (!status)
		status = attribute(cudaDevAttrCanUseHostPointerForRegisteredMem,
				   t->device, &same_address, err);
	if (!status)
		status = attribute(cudaDevAttrHostRegisterReadOnlySupported,
				   t->device, &t->read_only, err);
	if (status || t->placement == ENGRAM_CUDA_DEVICE ||
	    (registers && same_address))
		return status;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "device %d can not read host memory at its host "
			 "address",
			 t->device);
	engram_error_fix(err, "attach with ENGRAM_CUDA_DEVICE, which copies "
			      "the rows into device memory");
	return ENGRAM_EUNSUPPORTED;
}

/* The mappings of a layer in ranges; where its sources are. */
static enum engram_status cut_layer(struct engram_cuda_table *t, uint32_t i,
				    struct engram_error *err)
{
	const struct engram_layer_info *l = &t->layers[i];
	const struct engram_rows *rows = &l->rows;

	if (t->placement == ENGRAM_CUDA_HOST)
		return ENGRAM_OK;
	for (uint32_t m = 0; m < l->num_mappings; m++) {
		enum engram_status status = cuda_ranges_cut(
			&t->ranges, l->mapping[m].address, l->mapping[m].bytes,
			m ? rows->scales : rows->codes,
			(uint64_t)(m ? rows->scale_stride_bytes
				     : rows->code_stride_bytes),
			t->chunk_bytes, err);

		if (status)
			return status;
	}
	return ENGRAM_OK;
}

enum engram_status cuda_describe(struct engram_cuda_table *t,
				 struct engram_error *err)
{
	struct engram_table_info info;
	enum engram_status status;

	status = engram_table_info(t->table, &info);
	t->num_layers = status ? 0 : info.num_layers;
	t->num_cols = status ? 0 : info.num_cols;
	for (uint32_t i = 0; i < t->num_layers && !status; i++)
		status = engram_layer_info(t->table, i, &t->layers[i]);
	if (status) {
		*err = *engram_last_error();
		return status;
	}
	for (uint32_t i = 0; i < t->num_layers; i++) {
		struct engram_cuda_source *source = &t->sources[i];

		source->rows = t->layers[i].rows;
		source->resident = t->placement == ENGRAM_CUDA_DEVICE;
		if (t->placement == ENGRAM_CUDA_HOST)
			source->rows.codes = source->rows.scales = NULL;
	}
	return ENGRAM_OK;
}

/* Where a pointer into a mapping will point on the device. */
static const void *moved(const struct engram_mapping *mapping, char *copy,
			 const void *pointer)
{
	const char *from = pointer, *base = mapping->address;

	if (from < base || from >= base + mapping->bytes)
		return NULL;
	return copy + (from - base);
}

static void move_rows(struct engram_rows *rows,
		      const struct engram_mapping *mapping, char *copy)
{
	const void *codes = moved(mapping, copy, rows->codes);
	const void *scales = moved(mapping, copy, rows->scales);

	if (codes)
		rows->codes = codes;
	if (scales)
		rows->scales = scales;
}

/* Room on the device for what ENGRAM_CUDA_DEVICE copies. */
static enum engram_status allocate_copies(struct engram_cuda_table *t,
					  struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t n = 0;

	t->copies = calloc(t->ranges.mappings + 1, sizeof(*t->copies));
	if (!t->copies)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a list of copies");
	for (uint32_t i = 0; i < t->num_layers && !status; i++)
		for (uint32_t m = 0; m < t->layers[i].num_mappings; m++, n++) {
			const struct engram_mapping *mapping =
				&t->layers[i].mapping[m];

			status = engram_cuda_status(
				cudaMalloc((void **)&t->copies[n],
					   mapping->bytes),
				"room for the rows: cudaMalloc", err);
			if (status)
				break;
			t->device_bytes += mapping->bytes;
			move_rows(&t->sources[i].rows, mapping, t->copies[n]);
		}
	return status;
}

static void free_copies(struct engram_cuda_table *t)
{
	for (uint32_t i = 0; t->copies && i < t->ranges.mappings; i++)
		if (t->copies[i])
			engram_cuda_ignore(cudaFree(t->copies[i]));
	free(t->copies);
	t->copies = NULL;
}

enum engram_status cuda_memory_make(struct engram_cuda_table *t,
				    struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	for (uint32_t i = 0; i < t->num_layers && !status && !t->same_memory;
	     i++)
		status = cut_layer(t, i, err);
	if (!status && t->placement == ENGRAM_CUDA_DEVICE && !t->same_memory)
		status = allocate_copies(t, err);
	return status ? status : cuda_block_make(t, err);
}

void cuda_memory_free(struct engram_cuda_table *t)
{
	cuda_unregister(&t->ranges);
	free_copies(t);
	cuda_block_free(t);
	cuda_ranges_free(&t->ranges);
}

static enum engram_status check_params(
	const struct engram_cuda_attach_params *params,
	struct engram_error *err)
{
	if ((unsigned int)params->placement > ENGRAM_CUDA_HOST)
		return engram_invalid(err, "placement", "unknown",
				      "use ENGRAM_CUDA_REGISTERED, "
				      "ENGRAM_CUDA_DEVICE or ENGRAM_CUDA_HOST");
	if (params->chunk_bytes <= CUDA_CHUNK_MAX)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL, "chunk_bytes: more than 256 GiB");
	engram_error_fix(err, "give 0 for the default, 4 GiB");
	return ENGRAM_EINVAL;
}

static int make_lock(struct engram_cuda_table *t)
{
	pthread_condattr_t attr;
	int rc;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = pthread_cond_init(&t->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (rc)
		return rc;
	rc = pthread_mutex_init(&t->lock, NULL);
	if (rc)
		pthread_cond_destroy(&t->changed);
	return rc;
}

/* A handle that holds nothing yet; NULL on an error. */
static struct engram_cuda_table *make(
	const struct engram_cuda_attach_params *params,
	struct engram_error *err)
{
	struct engram_cuda_table *t = calloc(1, sizeof(*t));
	int rc;

	if (!t) {
		engram_error_set(err, ENGRAM_ENOMEM, "no memory for a table");
		return NULL;
	}
	rc = make_lock(t);
	if (rc) {
		engram_error_sys(err, rc, "making a lock");
		free(t);
		return NULL;
	}
	t->device = params->device;
	t->placement = params->placement;
	t->chunk_bytes =
		params->chunk_bytes ? params->chunk_bytes : CUDA_CHUNK_DEFAULT;
	return t;
}

static void destroy(struct engram_cuda_table *t)
{
	cuda_memory_free(t);
	engram_detach(t->table);
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* On the device, which is current. */
static enum engram_status attach_on_device(
	struct engram_cuda_table *t, engram_client *client,
	struct engram_attach_params attach,
	const struct engram_cuda_attach_params *params,
	struct engram_error *err)
{
	enum engram_status status = check_device(t, err);

	if (status)
		return status;
	if (params->force_writable)
		t->read_only = 0;
	attach.writable =
		t->placement == ENGRAM_CUDA_REGISTERED && !t->read_only;
	if (!attach.choose_node) {
		attach.node = cuda_device_node(t->device);
		attach.choose_node = attach.node >= 0;
	}
	status = engram_attach(client, &attach, &t->table);
	if (status) {
		*err = *engram_last_error();
		return status;
	}
	status = cuda_describe(t, err);
	if (!status)
		status = cuda_memory_make(t, err);
	return status ? status : cuda_prepare_start(t, err);
}

enum engram_status engram_cuda_attach(
	engram_client *client, const struct engram_attach_params *attach,
	const struct engram_cuda_attach_params *params, engram_cuda_table **out)
{
	static const struct engram_cuda_attach_params defaults = {.device = -1};
	struct engram_attach_params none = {0};
	struct engram_cuda_table *t;
	struct cuda_scope scope;
	struct engram_error err;
	enum engram_status status;

	*out = NULL;
	params = params ? params : &defaults;
	if (check_params(params, &err))
		return engram_set_last_error(&err);
	t = make(params, &err);
	if (!t)
		return engram_set_last_error(&err);
	status = cuda_enter(&scope, t->device, &err);
	if (status) {
		destroy(t);
		return engram_set_last_error(&err);
	}
	if (t->device < 0)
		t->device = scope.device;
	status = attach_on_device(t, client, attach ? *attach : none, params,
				  &err);
	if (status)
		destroy(t);
	cuda_leave(&scope);
	if (status)
		return engram_set_last_error(&err);
	*out = t;
	return ENGRAM_OK;
}

enum engram_status engram_cuda_detach(engram_cuda_table *table)
{
	struct engram_table_info info;
	struct cuda_scope scope;
	struct engram_error err;
	enum engram_status status;

	if (!table)
		return ENGRAM_OK;
	/* a forked child's copy of the handle */
	status = engram_table_info(table->table, &info);
	if (status)
		return status;
	cuda_prepare_stop(table);
	/* Whatever the device says, the host's part is let go of. */
	status = cuda_enter(&scope, table->device, &err);
	cuda_next_stop(table);
	destroy(table);
	if (status)
		return engram_set_last_error(&err);
	cuda_leave(&scope);
	return ENGRAM_OK;
}
