/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"
#include "manifest.h"

enum engram_status load_manifest_read(const struct config_table *table,
				      const struct checkpoint *checkpoint,
				      struct manifest *manifest, bool *found,
				      struct engram_error *err)
{
	enum engram_status status;

	*found = false;
	if (table->manifest == MANIFEST_OFF)
		return ENGRAM_OK;
	status = manifest_read(checkpoint->dir, manifest, err);
	if (status == ENGRAM_ENOTFOUND && table->manifest == MANIFEST_AUTO) {
		engram_error_clear(err);
		return ENGRAM_OK;
	}
	if (status)
		return status;
	status = manifest_check_files(manifest, checkpoint, err);
	if (status)
		manifest_free(manifest);
	*found = !status;
	return status;
}

enum engram_status load_compare_manifest(const struct generation *gen,
					 struct engram_error *err)
{
	const struct config_table *table =
		gen->spec ? &gen->spec->config : NULL;
	struct manifest manifest;
	enum engram_status status;
	uint32_t i;

	if (!table || table->manifest == MANIFEST_OFF)
		return ENGRAM_OK;
	status = manifest_read(table->checkpoint, &manifest, err);
	if (status == ENGRAM_ENOTFOUND && table->manifest == MANIFEST_AUTO) {
		engram_error_clear(err);
		return ENGRAM_OK;
	}
	for (i = 0; !status && i < gen->num_layers; i++)
		status =
			manifest_compare(&manifest, gen->layers[i].header, err);
	manifest_free(&manifest);
	return status;
}
