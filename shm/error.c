/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engram_error.h"

void engram_error_clear(struct engram_error *err)
{
	if (err)
		memset(err, 0, sizeof(*err));
}

/* vsnprintf that marks a cut text, so that nobody takes it for whole. */
static void format(char *out, size_t size, const char *fmt, va_list args)
{
	int n = vsnprintf(out, size, fmt, args);

	if (n >= 0 && (size_t)n >= size)
		memcpy(out + size - 4, "...", 4);
}

enum engram_status engram_error_set(struct engram_error *err,
				    enum engram_status status, const char *fmt,
				    ...)
{
	va_list args;

	if (!err)
		return status;
	engram_error_clear(err);
	err->status = status;
	va_start(args, fmt);
	format(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	return status;
}

static enum engram_status status_of_errno(int sys_errno)
{
	switch (sys_errno) {
	case ENOSPC:
	case EDQUOT:
		return ENGRAM_ENOSPACE;
	case ENOMEM:
		return ENGRAM_ENOMEM;
	case EACCES:
	case EPERM:
		return ENGRAM_EPERM;
	case ENOENT:
		return ENGRAM_ENOTFOUND;
	default:
		return ENGRAM_ESYS;
	}
}

enum engram_status engram_error_sys(struct engram_error *err, int sys_errno,
				    const char *fmt, ...)
{
	enum engram_status status = status_of_errno(sys_errno);
	char what[sizeof(err->message)];
	char text[128];
	va_list args;

	if (!err)
		return status;
	/* Format first: an argument may live in the error being replaced. */
	va_start(args, fmt);
	format(what, sizeof(what), fmt, args);
	va_end(args);
	engram_error_set(err, status, "%s: %s", what,
			 strerror_r(sys_errno, text, sizeof(text)));
	err->sys_errno = sys_errno;
	return status;
}

void engram_error_context(struct engram_error *err, const char *fmt, ...)
{
	char context[sizeof(err->message)];
	char message[sizeof(err->message)];
	va_list args;

	if (!err)
		return;
	va_start(args, fmt);
	format(context, sizeof(context), fmt, args);
	va_end(args);
	memcpy(message, err->message, sizeof(message));
	if ((size_t)snprintf(err->message, sizeof(err->message), "%s: %s",
			     context, message) >= sizeof(err->message))
		memcpy(err->message + sizeof(err->message) - 4, "...", 4);
}

void engram_error_fix(struct engram_error *err, const char *fmt, ...)
{
	va_list args;

	if (!err)
		return;
	va_start(args, fmt);
	format(err->fix, sizeof(err->fix), fmt, args);
	va_end(args);
}

void engram_error_path(struct engram_error *err, const char *fmt, ...)
{
	va_list args;

	if (!err)
		return;
	va_start(args, fmt);
	format(err->path, sizeof(err->path), fmt, args);
	va_end(args);
}

void engram_error_figures(struct engram_error *err, uint64_t needed,
			  uint64_t available)
{
	if (!err)
		return;
	err->needed = needed;
	err->available = available;
}
