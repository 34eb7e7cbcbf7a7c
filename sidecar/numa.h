/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of memory: which there are, which cores are near, what is free. */
#ifndef ENGRAMD_NUMA_H
#define ENGRAMD_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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
 * with a policy of its own (numactl, NUMAPolicy= of the unit).  "replicate" on
 * one node is one copy: "local", or "bind" if there are others.
 * ENGRAM_EINVAL if a node is not there.
 */
enum engram_status numa_resolve(const char *root,
				struct engram_backing *backing,
				struct engram_error *err);

/* The backing of one segment: of a copy for the node of `replica` (see struct
 * engram_segment_spec), or as it is. */
struct engram_backing numa_backing_of(const struct engram_backing *backing,
				      uint32_t replica);

/* Which of `nodes`, which are not none, is nearest to `node`: itself, else by
 * the distances that the firmware tells, and of equals the lowest. */
unsigned int numa_nearest(const char *root, uint64_t nodes, unsigned int node);

/* The nodes whose cores a process may run on; 0 if that is not known. */
uint64_t numa_of_process(const char *root, pid_t pid);

/* Until numa_go_back, the calling thread, and those that it starts, run on
 * `cores`: not even the stacks of those are elsewhere.  NULL: anywhere. */
void numa_go_near(const cpu_set_t *cores, cpu_set_t *before);
void numa_go_back(const cpu_set_t *cores, const cpu_set_t *before);

/* What these nodes together could still give, in bytes: free, or files that
 * are cached; of huge pages of that size, with `page_bytes`.  UINT64_MAX if it
 * can not be read. */
uint64_t numa_room(const char *root, uint64_t nodes, uint64_t page_bytes);

/* "0-1,3" for people; `out` has 64 bytes or more. */
const char *numa_text(uint64_t nodes, char *out, size_t size);

#endif
