/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"

static int64_t mtime_of(const struct stat *st)
{
	return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

enum engram_status identity_dangling(const char *path,
				     enum engram_status status,
				     struct engram_error *err)
{
	struct stat st;

	if (status != ENGRAM_ENOTFOUND || lstat(path, &st))
		return status;
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: is a link to what is not there", path);
	engram_error_path(err, "%s", path);
	engram_error_fix(err, "download the file again, or mount what the "
			      "link leads into");
	return ENGRAM_ECHECKPOINT;
}

enum engram_status identity_open(const char *path, int *fd,
				 struct engram_segment_source *identity,
				 struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	struct stat st;

	/* NONBLOCK, so that a FIFO in its place does not hang us. */
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0)
		status = engram_error_sys(err, errno, "open %s", path);
	else if (fstat(*fd, &st))
		status = engram_error_sys(err, errno, "stat %s", path);
	else if (!S_ISREG(st.st_mode))
		status = engram_error_set(err, ENGRAM_ECHECKPOINT,
					  "%s: not a regular file", path);
	if (status) {
		engram_error_path(err, "%s", path);
		if (*fd >= 0)
			close(*fd);
		return identity_dangling(path, status, err);
	}
	identity->size = (uint64_t)st.st_size;
	identity->mtime_ns = mtime_of(&st);
	identity->inode = st.st_ino;
	return ENGRAM_OK;
}

enum engram_status identity_check(const char *path,
				  const struct engram_segment_source *identity,
				  struct engram_error *err)
{
	struct stat st;

	if (stat(path, &st)) {
		engram_error_sys(err, errno, "stat %s", path);
		if (err)
			err->status = ENGRAM_ESOURCECHANGED;
	} else if ((uint64_t)st.st_size != identity->size) {
		engram_error_set(err, ENGRAM_ESOURCECHANGED,
				 "%s: was %" PRIu64 " bytes, is %" PRIu64
				 " now",
				 path, identity->size, (uint64_t)st.st_size);
	} else if (mtime_of(&st) != identity->mtime_ns ||
		   st.st_ino != identity->inode) {
		engram_error_set(err, ENGRAM_ESOURCECHANGED,
				 "%s: was written or replaced meanwhile", path);
	} else {
		return ENGRAM_OK;
	}
	engram_error_path(err, "%s", path);
	engram_error_fix(err, "load again when nothing writes to the "
			      "checkpoint any more");
	return ENGRAM_ESOURCECHANGED;
}
