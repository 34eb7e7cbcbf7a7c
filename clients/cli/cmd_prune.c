/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "engram_control.h"
#include "engram_segment.h"

struct prune {
	struct cli *cli;
	struct engram_backing backing;
	bool yes;
	json_t *list, *errors;
	uint64_t bytes, files;
	enum cli_exit code; /* of the first error */
};

static bool same_instance(const struct engram_segment_entry *a,
			  const struct engram_segment_entry *b)
{
	return !strcmp(a->instance, b->instance);
}

static int by_instance(const void *a, const void *b)
{
	const struct engram_segment_entry *x = a, *y = b;
	int order = strcmp(x->instance, y->instance);

	return order ? order : strcmp(x->name, y->name);
}

static void report(struct prune *p, const struct engram_segment_entry *e)
{
	char bytes[CLI_WORD];

	p->bytes += e->bytes;
	p->files++;
	json_array_append_new(p->list,
			      json_pack("{s:s, s:s, s:I}", "name", e->name,
					"instance", e->instance, "bytes",
					(json_int_t)e->bytes));
	if (!p->cli->json)
		printf("%s  %s  %s\n", p->yes ? "removed" : "orphan", e->name,
		       cli_bytes(bytes, (double)e->bytes));
}

/* Others are gone through all the same: anybody may put a file there. */
static void failed(struct prune *p, const char *instance,
		   const struct engram_error *err)
{
	if (!p->code)
		p->code = cli_exit_of(err->status);
	json_array_append_new(
		p->errors,
		json_pack("{s:s, s:s, s:s, s:s}", "instance", instance, "name",
			  engram_status_name(err->status), "message",
			  err->message, "fix", err->fix));
	fprintf(stderr, "engramctl: %s\n  fix: %s\n", err->message, err->fix);
}

static void remove_one(struct prune *p, const struct engram_segment_entry *e)
{
	struct engram_error err;

	/* the control page goes with its owner */
	if (p->yes && !e->control &&
	    engram_segment_remove(&p->backing, e->name, &err))
		failed(p, e->instance, &err);
	else
		report(p, e);
}

/*
 * The entries of one instance.  Removing holds the instance's name meanwhile,
 * so that no engramd starts and adopts what is about to go.
 */
static void prune_instance(struct prune *p,
			   const struct engram_segment_entry *e, size_t count)
{
	struct engram_control_owner *owner = NULL;
	enum engram_status status;
	struct engram_error err;
	int owned = 0;
	size_t i;

	if (p->yes)
		status = engram_control_claim(&p->backing, e->instance, &owner,
					      &err);
	else
		status = engram_control_owned(&p->backing, e->instance, &owned,
					      &err);
	if (owned || status == ENGRAM_EBUSY)
		return;
	if (status) {
		failed(p, e->instance, &err);
		return;
	}
	for (i = 0; i < count; i++)
		remove_one(p, &e[i]);
	engram_control_disown(owner, 1);
}

static enum cli_exit summary(struct prune *p)
{
	char bytes[CLI_WORD];

	if (p->cli->json) {
		cli_print_json(json_pack("{s:b, s:I, s:O, s:O}", "removed",
					 (int)p->yes, "bytes",
					 (json_int_t)p->bytes, "entries",
					 p->list, "errors", p->errors));
		return p->code;
	}
	if (!p->files && !p->code)
		printf("nothing to remove\n");
	else if (p->files)
		printf("%llu %s, %s%s\n", (unsigned long long)p->files,
		       p->files == 1 ? "file" : "files",
		       cli_bytes(bytes, (double)p->bytes),
		       p->yes ? " freed" : "; remove with --yes");
	return p->code;
}

static enum engram_status prune_all(struct prune *p, struct engram_error *err)
{
	struct engram_segment_entry *entries;
	enum engram_status status;
	size_t count, i, n;

	status = engram_segment_list(&p->backing, p->cli->instance, &entries,
				     &count, err);
	if (status)
		return status;
	if (count)
		qsort(entries, count, sizeof(*entries), by_instance);
	for (i = 0; i < count; i += n) {
		for (n = 1; i + n < count &&
			    same_instance(&entries[i], &entries[i + n]);
		     n++)
			;
		prune_instance(p, &entries[i], n);
	}
	free(entries);
	return ENGRAM_OK;
}

static enum cli_exit run_prune(struct cli *cli)
{
	const char *path = cli_option(cli, "--path");
	struct prune p = {.cli = cli, .yes = cli_switch(cli, "--yes")};
	const char *dir = path ? path : "/dev/shm";
	struct engram_error err;
	enum cli_exit code;

	/* Names are the same in a hugetlbfs. */
	p.backing.kind = ENGRAM_BACKING_SHM;
	if (strlen(dir) >= sizeof(p.backing.dir))
		return cli_usage_error("give a shorter path",
				       "--path: the path is too long");
	snprintf(p.backing.dir, sizeof(p.backing.dir), "%s", dir);
	if (cli->instance && !engram_instance_valid(cli->instance))
		return cli_usage_error("give the name of an instance",
				       "--instance: \"%s\" is no instance name",
				       cli->instance);
	p.list = json_array();
	p.errors = json_array();
	code = prune_all(&p, &err) ? cli_fail(cli, &err) : summary(&p);
	json_decref(p.list);
	json_decref(p.errors);
	return code;
}

static const struct cli_option prune_options[] = {
	{"--yes", NULL, "remove them; without it they are only listed"},
	{"--path", "DIR", "look into this mount, not into /dev/shm"},
	{0},
};

const struct cli_command cmd_prune = {
	.name = "prune",
	.usage = "[--instance NAME] [--path DIR] [--yes]",
	.summary = "remove memory that no living engramd owns",
	.details = "\nWorks without engramd. Lists segments and control pages "
		   "whose instance does not\nrun, such as were left by a crash "
		   "or by \"shutdown --keep\"; --yes removes them. What\n"
		   "clients have mapped stays theirs until they unmap.",
	.options = prune_options,
	.run = run_prune,
};
