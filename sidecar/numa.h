/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of memory: which there are, which cores are near, what is free. */
#ifndef ENGRAMD_NUMA_H
#define ENGRAMD_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_segment.h"

/* `root` is that of /proc and /sys: "". */

/* Nodes that have both memory and cores: not the memory of devices.  Bit n:
 * node n; 1 where it can not be read. */
uint64_t numa_nodes(const char *root);

/* The cores of these nodes that this process may run on; false if that is none
 * or they are not known. */
bool numa_cores(const char *root, uint64_t nodes, cpu_set_t *out);

/*
 * From what is configured to what a segment is made with: nodes that were not
 * given are all; "local" becomes the node that the calling thread runs on, with
 * others once that is full, unless there is one only, or engramd was started
 * with a policy of its own (numactl, NUMAPolicy= of the unit).
 * ENGRAM_EINVAL if a node is not there.
 */
enum engram_status numa_resolve(const char *root,
				struct engram_backing *backing,
				struct engram_error *err);

/* What these nodes together could still give, in bytes: free, or files that
 * are cached; of huge pages of that size, with `page_bytes`.  UINT64_MAX if it
 * can not be read. */
uint64_t numa_room(const char *root, uint64_t nodes, uint64_t page_bytes);

/* "0-1,3" for people; `out` has 64 bytes or more. */
const char *numa_text(uint64_t nodes, char *out, size_t size);

#endif
