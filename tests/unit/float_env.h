/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's floating-point settings as frameworks leave them: another
 * rounding and, where that is known how, subnormals flushed to zero. */
#ifndef TEST_FLOAT_ENV_H
#define TEST_FLOAT_ENV_H

#include <fenv.h>

#ifdef __x86_64__
#include <xmmintrin.h>
#define FLUSH 0x8040u /* results and operands */
#endif

static inline void float_env_spoil(void)
{
	fesetround(FE_UPWARD);
#ifdef FLUSH
	_mm_setcsr(_mm_getcsr() | FLUSH);
#endif
}

/* Whether the settings are still those, and then the default. */
static inline int float_env_heal(void)
{
	int kept = fegetround() == FE_UPWARD;

#ifdef FLUSH
	kept = kept && (_mm_getcsr() & FLUSH) == FLUSH;
#endif
	fesetenv(FE_DFL_ENV);
	return kept;
}

#endif
