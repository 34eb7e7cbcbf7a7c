/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An error as it travels up: set once where it happens, context added by
 * the callers, shown once at the top.  Fixed size and no allocation, so that
 * reporting can not fail.
 *
 * The message reads "context: context: what happened"; `fix` is a separate
 * sentence that says what to do.  A NULL `struct engram_error *` is allowed
 * everywhere and discards the text.
 */
#ifndef ENGRAM_ERROR_H
#define ENGRAM_ERROR_H

#include <stdint.h>

#include "engram_status.h"

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

struct engram_error {
	enum engram_status status;
	int sys_errno;	    /* errno of the failed system call, or 0 */
	uint64_t needed;    /* bytes or units asked for, or 0 */
	uint64_t available; /* what there was of them */
	char path[256];	    /* the file, or the JSON path of a field, or "" */
	char message[768];
	char fix[256];
};

#define ENGRAM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

void engram_error_clear(struct engram_error *err);

/* Start a new error.  Returns `status`, so that it can be returned at once. */
enum engram_status engram_error_set(struct engram_error *err,
				    enum engram_status status, const char *fmt,
				    ...) ENGRAM_PRINTF(3, 4);

/*
 * The same for a failed system call: appends ": strerror(sys_errno)" and maps
 * well-known errnos to their status (ENOSPC, ENOMEM, EACCES, EPERM, ENOENT);
 * the rest are ENGRAM_ESYS.  Returns the status chosen.
 */
enum engram_status engram_error_sys(struct engram_error *err, int sys_errno,
				    const char *fmt, ...) ENGRAM_PRINTF(3, 4);

/* Put "fmt: " before the message. */
void engram_error_context(struct engram_error *err, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);

/* Replace the fix, the path, or the two figures of an error already set. */
void engram_error_fix(struct engram_error *err, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);
void engram_error_path(struct engram_error *err, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);
void engram_error_figures(struct engram_error *err, uint64_t needed,
			  uint64_t available);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
