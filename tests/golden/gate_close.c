/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "gate_close.h"

double gate_widen(uint16_t bits)
{
	uint32_t wide = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &wide, sizeof(value));
	return value;
}

/* bf16 has 8 significant bits and the exponents of fp32 */
static double unit_of(double value)
{
	int exponent = value == 0 ? -126 : ilogb(value);

	return ldexp(1, (exponent < -126 ? -126 : exponent) - 7);
}

int gate_close(uint16_t got_bits, uint16_t want_bits, uint16_t hidden)
{
	double got = gate_widen(got_bits), want = gate_widen(want_bits);
	double size = fmax(fabs(want), fabs(gate_widen(hidden)));

	if (isnan(want))
		return isnan(got);
	if (isinf(want) || isnan(got) || isinf(got))
		return got == want;
	return fabs(got - want) <= unit_of(size);
}
