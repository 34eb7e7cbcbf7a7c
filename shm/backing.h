/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are memory: in /dev/shm, on hugetlbfs, and memfd. */
#ifndef ENGRAM_SHM_BACKING_H
#define ENGRAM_SHM_BACKING_H

#include "segment.h"

/* "<dir>/<name>"; ENGRAM_EUNSUPPORTED for memfd, ENGRAM_EINVAL if it does not
 * fit. */
enum engram_status backing_path(char out[SEGMENT_PATH_MAX],
				const struct engram_backing *backing,
				const char *name, struct engram_error *err);

/* A new, empty file (or memfd) of mode 0640, read-write.  ENGRAM_EEXIST if
 * the name is taken. */
enum engram_status backing_create(const struct engram_backing *backing,
				  const char *name, int *fd,
				  struct engram_error *err);

/* A descriptor of its own of the file behind `fd`, O_RDONLY or O_RDWR as
 * `access` says, by way of /proc, or by `path` (NULL: none) where there is no
 * /proc. */
enum engram_status backing_reopen(int fd, const char *path, int access,
				  int *out, struct engram_error *err);

/* open, EINTR retried. */
int backing_open_retry(const char *path, int flags, unsigned int mode);

/* close that keeps errno; -1 is allowed. */
void backing_close(int fd);

#endif
