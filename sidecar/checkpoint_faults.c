/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint_faults.h"

/* A fix for faults that have none of their own. */
static void suggest(enum engram_status status, struct engram_error *err)
{
	if (err && !err->fix[0] &&
	    (status == ENGRAM_ECHECKPOINT || status == ENGRAM_EGEOMETRY))
		engram_error_fix(err, "compare it with the model as released, "
				      "or download it again");
}

enum engram_status checkpoint_faults_add(struct checkpoint_faults *faults,
					 const struct engram_error *err)
{
	struct engram_error *list;
	size_t i;

	/* Two tensors of one damaged file are one fault. */
	for (i = 0; i < faults->count; i++)
		if (!strcmp(faults->list[i].message, err->message))
			return ENGRAM_OK;
	list = realloc(faults->list, (faults->count + 1) * sizeof(*list));
	if (!list)
		return ENGRAM_ENOMEM;
	faults->list = list;
	list[faults->count++] = *err;
	return ENGRAM_OK;
}

enum engram_status checkpoint_fault(struct checkpoint *c,
				    enum engram_status status,
				    struct engram_error *err)
{
	suggest(status, err);
	if (!status || status == ENGRAM_ENOMEM || !c->faults || !err)
		return status;
	if (checkpoint_faults_add(c->faults, err))
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to read a checkpoint");
	engram_error_clear(err);
	return ENGRAM_OK;
}

void checkpoint_faults_free(struct checkpoint_faults *faults)
{
	free(faults->list);
	memset(faults, 0, sizeof(*faults));
}
