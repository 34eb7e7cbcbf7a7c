/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the installed libengram_cuda that has neither CUDA's headers nor
 * its libraries: makes a matrix product and lets go of it.  Where there is no
 * device (or no cuBLASLt) it says so and exits 77.
 */
#include <engram_cuda.h>
#include <engram_cuda_layer.h>
#include <stdio.h>

int main(void)
{
	const struct engram_wkv_params params = {
		.format = ENGRAM_WKV_BF16,
		.weight = &params, /* used where it is: by no product here */
		.in_features = 64,
		.out_features = 64,
		.workspace_bytes = 4096,
	};
	struct engram_error err;
	engram_wkv *wkv;
	enum engram_status status;

	status = engram_wkv_create(&params, &wkv, &err);
	if (status == ENGRAM_ECUDA || status == ENGRAM_EUNSUPPORTED) {
		printf("skip: %s; %s\n", err.message, err.fix);
		return 77;
	}
	if (status) {
		fprintf(stderr, "%s; %s\n", err.message, err.fix);
		return 1;
	}
	engram_wkv_destroy(wkv);
	return engram_cuda_detach(NULL) != ENGRAM_OK;
}
