/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_GATE_CLOSE_H
#define ENGRAM_GATE_CLOSE_H

#include <stdint.h>

/* bf16 bits -> their value */
double gate_widen(uint16_t bits);

/*
 * Each backend of the gate sums in an order of its own, so two results may
 * differ by one bf16 unit, measured at the larger of |want| and |hidden|:
 * where the two cancel, the rounding of the larger one remains.  What is not
 * finite must agree.
 */
int gate_close(uint16_t got, uint16_t want, uint16_t hidden);

#endif
