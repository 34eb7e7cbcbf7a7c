/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of memory, by the system calls: a library for four of them is not
 * worth a dependency of every client. */
#ifndef ENGRAM_SHM_NODES_H
#define ENGRAM_SHM_NODES_H

#include "segment_writer.h"

/* Say where the pages of a mapping come from that has none yet. */
enum engram_status segment_set_nodes(const struct engram_segment_writer *w,
				     struct engram_error *err);

/*
 * Which small page of the huge page at `offset` of the file the kernel puts on
 * the node that is the huge page's turn: interleaving goes by small pages, and
 * the first of every huge page would always be on the same node.
 */
uint64_t segment_turn_page(const struct engram_segment_writer *w,
			   uint64_t offset);

#endif
