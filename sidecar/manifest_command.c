/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "manifest.h"
#include "spec.h"

#define MIB	 1048576.0
#define SHOWN_US 200000

struct work {
	const struct checkpoint *checkpoint;
	const struct loader_options *options;
	struct manifest known; /* to be compared with, if there is one */
	bool compare;
	struct loader_progress progress;
	struct manifest made;
	enum engram_status status;
	struct engram_error err;
	_Atomic bool done;
};

static void *make(void *arg)
{
	struct work *w = arg;

	w->status = manifest_make(w->checkpoint, w->options,
				  w->compare ? &w->known : NULL, &w->progress,
				  &w->made, &w->err);
	atomic_store(&w->done, true);
	return NULL;
}

/* On a terminal, a line that is drawn over. */
static void show(const struct work *w)
{
	const uint64_t start = clock_ns();
	double done, total;

	while (isatty(STDERR_FILENO) && !atomic_load(&w->done)) {
		usleep(SHOWN_US);
		done = (double)atomic_load(&w->progress.bytes_done) / MIB;
		total = (double)atomic_load(&w->progress.bytes_total) / MIB;
		fprintf(stderr,
			"\r%3.0f %%  %.0f of %.0f MiB  %.0f MiB/s\033[K",
			total > 0 ? 100 * done / total : 0, done, total,
			done / clock_seconds_since(start));
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

static enum engram_status make_and_show(struct work *w)
{
	pthread_t thread;
	int rc = pthread_create(&thread, NULL, make, w);

	if (rc)
		return engram_error_sys(&w->err, rc, "start a thread");
	show(w);
	pthread_join(thread, NULL);
	return w->status;
}

static enum engram_status check(struct work *w, const char *dir)
{
	enum engram_status status = manifest_read(dir, &w->known, &w->err);

	if (status)
		return status;
	w->compare = true;
	status = manifest_check_files(&w->known, w->checkpoint, &w->err);
	if (!status)
		status = make_and_show(w);
	manifest_free(&w->known);
	return status;
}

static enum engram_status run(const struct manifest_command *command,
			      struct work *w)
{
	const char *dir = w->checkpoint->dir;
	enum engram_status status;

	if (command->check) {
		status = check(w, dir);
	} else {
		status = make_and_show(w);
		if (!status)
			status = manifest_write(&w->made, dir, &w->err);
	}
	if (!status)
		printf("%s/%s: %zu files and %" PRIu64 " bytes of rows %s\n",
		       dir, MANIFEST_NAME, w->made.num_files,
		       atomic_load(&w->progress.bytes_done),
		       command->check ? "are as it says" : "written down");
	return status;
}

int manifest_run(const struct manifest_command *command,
		 const struct loader_options *options)
{
	struct checkpoint_options open = {.dir = NULL};
	struct checkpoint *checkpoint = NULL;
	struct work *w = calloc(1, sizeof(*w));
	enum engram_status status;

	if (!w) {
		fputs("engramd: no memory for a manifest\n", stderr);
		return EXIT_FAILURE;
	}
	if (command->table)
		open = table_checkpoint_options(command->table);
	if (command->dir)
		open.dir = command->dir;
	if (command->token_map)
		open.token_map_file = command->token_map;
	status = checkpoint_open(&open, &checkpoint, &w->err);
	w->checkpoint = checkpoint;
	w->options = options;
	if (!status)
		status = run(command, w);
	if (status) {
		fprintf(stderr, "engramd: %s\n", w->err.message);
		if (*w->err.fix)
			fprintf(stderr, "  fix: %s\n", w->err.fix);
	}
	manifest_free(&w->made);
	checkpoint_free(checkpoint);
	free(w);
	return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
