/* SPDX-License-Identifier: Apache-2.0 */
/* The node of memory of a device, by its PCI address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "device.h"
#include "fake_cuda.h"

/* The path to what stands in for the device's folder in /sys. */
static char bus_id[64], dir[64], file[96];

static void put(const char *text)
{
	FILE *f = fopen(file, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void told(void **state)
{
	(void)state;
	fake_cuda.bus_id = bus_id;
	put("1\n");
	assert_int_equal(cuda_device_node(1), 1);
	put("63\n");
	assert_int_equal(cuda_device_node(1), 63);
}

/* Then the sidecar chooses, and no error is left for the next call. */
static void not_told(void **state)
{
	static const char *const texts[] = {"-1\n", "64\n", "", "x\n"};
	size_t i;

	(void)state;
	fake_cuda.bus_id = bus_id;
	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		put(texts[i]);
		assert_int_equal(cuda_device_node(1), -1);
	}
	assert_int_equal(unlink(file), 0);
	assert_int_equal(cuda_device_node(1), -1);
	assert_int_equal(cuda_device_node(0), -1);
	assert_int_equal(fake_cuda.pending_errors, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(told),
		cmocka_unit_test(not_told),
	};
	int failed;

	snprintf(dir, sizeof(dir), "/tmp/node-%d", (int)getpid());
	snprintf(file, sizeof(file), "%s/numa_node", dir);
	/* as /sys/bus/pci/devices/BUS_ID */
	snprintf(bus_id, sizeof(bus_id), "../../../../tmp/node-%d",
		 (int)getpid());
	if (mkdir(dir, 0700))
		return 1;
	fake_cuda_reset();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(file);
	return rmdir(dir) ? 1 : failed;
}
