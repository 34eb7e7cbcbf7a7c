/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdlib.h>

#include "config_parts.h"

#define SPIN_US_DFLT	1000
#define IDLE_MS_DFLT	50
#define UNIT_ROWS_DFLT	512
#define RING_BYTES_DFLT (UINT64_C(1) << 30)
#define RING_BYTES_MIN	(UINT64_C(1) << 20)

/* Core numbers, into out->cores. */
static void read_cores(struct json_view *v, struct gather_options *out)
{
	json_t *array = json_view_array(v, "cores", 1, GATHER_THREADS_MAX);
	json_t *item;
	size_t i;

	if (!array)
		return;
	out->cores = calloc(json_array_size(array), sizeof(*out->cores));
	if (!out->cores) {
		config_no_memory(v);
		return;
	}
	json_array_foreach(array, i, item)
	{
		json_int_t core = json_integer_value(item);

		if (!json_is_integer(item) || core < 0 || core >= CPU_SETSIZE)
			config_fault(v, "cores",
				     "give the numbers of cores, from 0, as "
				     "lscpu shows them",
				     "item %zu is no number of a core", i);
		out->cores[i] = (int32_t)core;
	}
	out->num_cores = (uint32_t)json_array_size(array);
}

void config_read_gather(struct json_view *top, struct config *config)
{
	struct gather_options *out = &config->gather;
	struct json_view v;

	*out = (struct gather_options){.spin_us = SPIN_US_DFLT,
				       .idle_ms = IDLE_MS_DFLT,
				       .unit_rows = UNIT_ROWS_DFLT,
				       .ring_bytes = RING_BYTES_DFLT};
	if (!config_section_begin(top, &v, "gather"))
		return;
	out->off = !json_view_bool(&v, "enabled", true);
	out->threads = (uint32_t)json_view_int(&v, "threads", 1,
					       GATHER_THREADS_MAX, 0);
	read_cores(&v, out);
	out->spin_us = (uint32_t)json_view_int(&v, "spin_us", 0, 1000000,
					       SPIN_US_DFLT);
	out->idle_ms =
		(uint32_t)json_view_int(&v, "idle_ms", 0, 900, IDLE_MS_DFLT);
	out->unit_rows = (uint32_t)json_view_int(&v, "unit_rows", 32, 65536,
						 UNIT_ROWS_DFLT);
	out->ring_bytes =
		json_view_bytes(&v, "ring_bytes", RING_BYTES_MIN,
				ENGRAM_RING_BYTES_MAX, RING_BYTES_DFLT);
	config_section_end(top, &v);
}
