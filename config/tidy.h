/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For clang-tidy alone, which looks at one source file at a time: that the
 * functions which set an error return that error, and never ENGRAM_OK.
 * Without it every caller seems to go on after a failure.
 */
#include "engram_error.h"

#define engram_error_set(err, status, ...) \
	((void)(engram_error_set)(err, status, __VA_ARGS__), status)
#define engram_error_sys(err, sys_errno, ...) \
	((void)(engram_error_sys)(err, sys_errno, __VA_ARGS__), ENGRAM_ESYS)
