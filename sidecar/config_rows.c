/* SPDX-License-Identifier: Apache-2.0 */
/* "rows" of a table: how a row is stored. */
#include <float.h>
#include <inttypes.h>

#include "config_parts.h"

#define BLOCK_DEFAULT 32

static const char *const dtype_names[] = {"fp8_e4m3", "bf16", NULL};
static const enum engram_dtype dtypes[] = {ENGRAM_F8_E4M3, ENGRAM_BF16};
/* In the order of enum engram_scale_scheme. */
static const char *const scale_names[] = {"none", "tensor", "ue8m0", NULL};

static void read_block(struct json_view *v, struct table_format *f)
{
	const uint32_t block = (uint32_t)json_view_int(
		v, "block", 1, CONFIG_DIM_MAX, BLOCK_DEFAULT);

	if (f->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK) {
		f->block_size = block;
		if (f->dim % block)
			config_fault(v, "block",
				     "give a block that divides dim",
				     "blocks of %" PRIu32
				     " do not divide rows of %" PRIu32,
				     block, f->dim);
	} else if (json_view_has(v, "block")) {
		config_fault(v, "block", "remove it, or set scale to \"ue8m0\"",
			     "is for the scale \"ue8m0\"");
	}
}

static void read_tensor_scale(struct json_view *v, struct table_format *f)
{
	const double scale = json_view_real(v, "tensor_scale", 0, FLT_MAX, 0);

	if (!json_view_has(v, "tensor_scale"))
		return;
	f->tensor_scale = (float)scale;
	if (f->scale_scheme != ENGRAM_SCALE_TENSOR)
		config_fault(v, "tensor_scale",
			     "remove it, or set scale to \"tensor\"",
			     "is for the scale \"tensor\"");
	else if (!(f->tensor_scale > 0))
		config_fault(v, "tensor_scale",
			     "give the factor that codes are multiplied with",
			     "must be above 0");
}

void config_read_rows(struct json_view *top, struct table_format *f)
{
	struct json_view v;

	*f = TABLE_FORMAT_DEFAULT;
	if (!config_section_begin(top, &v, "rows"))
		return;
	f->dim = (uint32_t)json_view_int(&v, "dim", 1, CONFIG_DIM_MAX, 0);
	f->dtype = dtypes[json_view_enum(&v, "dtype", dtype_names, 0)];
	f->scale_scheme = (uint32_t)json_view_enum(
		&v, "scale", scale_names,
		f->dtype == ENGRAM_BF16 ? ENGRAM_SCALE_NONE
					: ENGRAM_SCALE_UE8M0_BLOCK);
	read_block(&v, f);
	read_tensor_scale(&v, f);
	f->row_multiple =
		(uint32_t)json_view_int(&v, "multiple", 1, 1 << 20, 1);
	config_section_end(top, &v);
}
