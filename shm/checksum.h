/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 by the widest registers that the processor has, where libxxhash was
 * built to choose at run time: XXH3_64bits and XXH3_64bits_update are macros
 * for that then.  The same sums everywhere.
 */
#ifndef ENGRAM_SHM_CHECKSUM_H
#define ENGRAM_SHM_CHECKSUM_H

#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
#endif

#endif
