/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "acceptor.h"
#include "listener.h"
#include "lock.h"
#include "log.h"

struct listener {
	struct listener_options options;
	struct sockaddr_un address;
	char lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
	gid_t group; /* -1: as it comes */
	int lock_fd, fd;
	struct acceptor *acceptor;
	bool bound;
};

static enum engram_status find_group(const char *name, gid_t *gid,
				     struct engram_error *err)
{
	struct group *group = getgrnam(name);

	if (!group) {
		engram_error_set(err, ENGRAM_ECONFIG,
				 "there is no group \"%s\"", name);
		engram_error_fix(err, "make it with groupadd, or change "
				      "\"socket.group\"");
		engram_error_path(err, "socket.group");
		return ENGRAM_ECONFIG;
	}
	*gid = group->gr_gid;
	return ENGRAM_OK;
}

/* A directory that is there already is left as its owner made it. */
static enum engram_status make_directory(const char *path, const char *key,
					 gid_t group, struct engram_error *err)
{
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
	char *slash;

	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return ENGRAM_OK;
	*slash = '\0';
	/* Who may use the socket has to get at it. */
	if (mkdir(dir, 0750) == 0) {
		if (lchown(dir, (uid_t)-1, group) == 0)
			return ENGRAM_OK;
	} else if (errno == EEXIST) {
		return ENGRAM_OK;
	}
	engram_error_sys(err, errno, "socket directory \"%s\"", dir);
	engram_error_fix(err, "make the directory, or choose another \"%s\"",
			 key);
	engram_error_path(err, "%s", dir);
	return err->status;
}

/* True if the name still is the file that is locked: a former owner may have
 * removed it between our open and our flock. */
static bool same_file(int fd, const char *path)
{
	struct stat by_fd, by_name;

	return fstat(fd, &by_fd) == 0 && lstat(path, &by_name) == 0 &&
	       by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev;
}

static int32_t lock_file_pid(int fd)
{
	char text[16] = "";

	return pread(fd, text, sizeof(text) - 1, 0) > 0
		       ? (int32_t)strtol(text, NULL, 10)
		       : 0;
}

/* For those who find the lock taken; not worth a failure. */
static void write_pid(const struct listener *l)
{
	if (ftruncate(l->lock_fd, 0) ||
	    dprintf(l->lock_fd, "%d\n", (int)getpid()) < 0)
		log_warn("pid not written to the lock file",
			 LOG_S("error", strerror(errno)));
}

static enum engram_status take_lock(struct listener *l,
				    struct engram_error *err)
{
	int locked, error;

	for (;;) {
		l->lock_fd =
			open(l->lock_path,
			     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (l->lock_fd < 0) {
			engram_error_sys(err, errno, "lock file \"%s\"",
					 l->lock_path);
			engram_error_path(err, "%s", l->lock_path);
			return err->status;
		}
		locked = lock_exclusive(l->lock_fd, lock_file_pid);
		if (locked <= 0)
			break;
		if (same_file(l->lock_fd, l->lock_path)) {
			write_pid(l);
			return ENGRAM_OK;
		}
		close(l->lock_fd);
	}
	error = errno;
	close(l->lock_fd);
	l->lock_fd = -1;
	if (locked < 0)
		return engram_error_sys(err, error, "lock file \"%s\"",
					l->lock_path);
	engram_error_set(err, ENGRAM_EBUSY,
			 "socket \"%s\" belongs to another engramd",
			 l->options.path);
	engram_error_fix(err, "stop the other one, or choose another \"%s\"",
			 l->options.key);
	engram_error_path(err, "%s", l->options.path);
	return ENGRAM_EBUSY;
}

/* The lock is ours, so a socket of that name is nobody's. */
static enum engram_status remove_stale(const char *path, const char *key,
				       struct engram_error *err)
{
	struct stat st;

	if (lstat(path, &st)) {
		if (errno == ENOENT)
			return ENGRAM_OK;
		return engram_error_sys(err, errno, "socket \"%s\"", path);
	}
	if (!S_ISSOCK(st.st_mode)) {
		engram_error_set(err, ENGRAM_EEXIST,
				 "\"%s\" is there already and is no socket",
				 path);
		engram_error_fix(err, "remove it, or choose another \"%s\"",
				 key);
		engram_error_path(err, "%s", path);
		return ENGRAM_EEXIST;
	}
	if (unlink(path) && errno != ENOENT)
		return engram_error_sys(err, errno, "remove stale \"%s\"",
					path);
	return ENGRAM_OK;
}

static enum engram_status set_owner(const struct listener *l,
				    struct engram_error *err)
{
	const struct listener_options *options = &l->options;

	if (options->group && lchown(options->path, (uid_t)-1, l->group))
		return engram_error_sys(err, errno,
					"give \"%s\" to group \"%s\"",
					options->path, options->group);
	if (chmod(options->path, options->mode))
		return engram_error_sys(err, errno, "mode of \"%s\"",
					options->path);
	return ENGRAM_OK;
}

static enum engram_status bind_socket(struct listener *l,
				      struct engram_error *err)
{
	enum engram_status status;
	mode_t before;
	int rc;

	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0)
		return engram_error_sys(err, errno, "socket");
	/* Nobody but us may connect before mode and group are set. */
	before = umask(0177);
	rc = bind(l->fd, (struct sockaddr *)&l->address, sizeof(l->address));
	umask(before);
	if (rc) {
		engram_error_sys(err, errno, "bind \"%s\"", l->options.path);
		engram_error_path(err, "%s", l->options.path);
		return err->status;
	}
	l->bound = true;
	status = set_owner(l, err);
	if (status)
		return status;
	if (listen(l->fd, ACCEPTOR_BACKLOG))
		return engram_error_sys(err, errno, "listen on \"%s\"",
					l->options.path);
	return ENGRAM_OK;
}

enum engram_status listener_open(struct event_base *base,
				 const struct listener_options *options,
				 struct listener **out,
				 struct engram_error *err)
{
	struct listener *l = calloc(1, sizeof(*l));
	enum engram_status status;

	if (!l)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	l->options = *options;
	l->lock_fd = -1;
	l->fd = -1;
	l->address.sun_family = AF_UNIX;
	if (strlen(options->path) >= sizeof(l->address.sun_path)) {
		status = engram_error_set(err, ENGRAM_ECONFIG,
					  "socket path \"%s\" is longer than "
					  "%zu bytes",
					  options->path,
					  sizeof(l->address.sun_path) - 1);
		engram_error_path(err, "%s", options->key);
		goto fail;
	}
	memcpy(l->address.sun_path, options->path, strlen(options->path));
	l->options.path = l->address.sun_path; /* the caller's may go */
	snprintf(l->lock_path, sizeof(l->lock_path), "%s.lock", options->path);
	l->group = (gid_t)-1;
	status = options->group ? find_group(options->group, &l->group, err)
				: ENGRAM_OK;
	if (!status)
		status = make_directory(options->path, options->key, l->group,
					err);
	if (!status)
		status = take_lock(l, err);
	if (!status)
		status = remove_stale(options->path, options->key, err);
	if (!status)
		status = bind_socket(l, err);
	if (status)
		goto fail;
	l->acceptor =
		acceptor_new(base, l->fd, options->accepted, options->ctx);
	if (!l->acceptor) {
		status = engram_error_set(err, ENGRAM_ENOMEM, "no memory");
		goto fail;
	}
	*out = l;
	return ENGRAM_OK;

fail:
	listener_close(l);
	return status;
}

void listener_close(struct listener *l)
{
	if (!l)
		return;
	acceptor_free(l->acceptor);
	if (l->bound)
		unlink(l->options.path);
	if (l->fd >= 0)
		close(l->fd);
	if (l->lock_fd >= 0) {
		unlink(l->lock_path);
		close(l->lock_fd);
	}
	free(l);
}
