/* SPDX-License-Identifier: Apache-2.0 */
/* What tells one state of a source file from another: size, mtime, inode. */
#ifndef ENGRAMD_IDENTITY_H
#define ENGRAMD_IDENTITY_H

#include "engram_error.h"
#include "engram_segment.h"

/* Open a regular file for reading (CLOEXEC, links followed) and note what it
 * is; header_hash and name are the caller's to fill. */
enum engram_status identity_open(const char *path, int *fd,
				 struct engram_segment_source *identity,
				 struct engram_error *err);

/*
 * A file that was not found (`status` ENGRAM_ENOTFOUND) may do without, unless
 * there is a link of its name that leads nowhere: ENGRAM_ECHECKPOINT then, else
 * `status`.
 */
enum engram_status identity_dangling(const char *path,
				     enum engram_status status,
				     struct engram_error *err);

/* ENGRAM_ESOURCECHANGED if the file at `path` is not what it was. */
enum engram_status identity_check(const char *path,
				  const struct engram_segment_source *identity,
				  struct engram_error *err);

#endif
