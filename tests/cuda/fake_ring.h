/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake device's launches through a ring have in common. */
#ifndef FAKE_RING_H
#define FAKE_RING_H

#include "engram_cuda_ring.h"
#include "engram_ring.h"

/* Has engramd let go of the slot? */
int fake_ring_await_idle(const struct engram_cuda_ring *ring);
void fake_ring_write_post(struct engram_ring_slot *slot,
			  const struct engram_cuda_ring_batch *batch,
			  uint32_t seq, uint32_t rows, uint32_t flag_rows);
/* Did it come, by the value of its flag; if not, was it at least answered? */
int fake_ring_has_come(const struct engram_cuda_ring *ring,
		       const struct engram_cuda_ring_batch *batch,
		       uint32_t value);
/* Has the chunk come to the rescue slot, where it was posted? */
int fake_ring_await_rescue(const struct engram_cuda_ring *ring, uint32_t flag,
			   uint32_t seq);

#endif
