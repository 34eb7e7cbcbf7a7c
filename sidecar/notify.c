/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <systemd/sd-daemon.h>

#include "clock.h"
#include "notify.h"

void notify_ready(void)
{
	sd_notify(0, "READY=1");
}

void notify_reloading(void)
{
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu",
		   (unsigned long long)(clock_ns() / 1000));
}

void notify_stopping(void)
{
	sd_notify(0, "STOPPING=1\nSTATUS=stopping");
}

void notify_extend(unsigned int seconds)
{
	sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu",
		   (unsigned long long)seconds * 1000000);
}

void notify_tick(const struct server *server)
{
	unsigned int ready = 0, all = 0, loading = 0;
	uint64_t done = 0, total = 0;
	const struct table *table;
	const struct job *job;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	{
		all++;
		ready += table->state == ENGRAM_TABLE_READY;
	}
	TAILQ_FOREACH(job, &server->jobs.running, entry)
	{
		if (job->kind != JOB_LOAD)
			continue;
		loading++;
		done += atomic_load(&job->progress.bytes_done);
		total += atomic_load(&job->progress.bytes_total);
	}
	if (loading || server->stopping)
		notify_extend(30);
	if (loading)
		sd_notifyf(0,
			   "WATCHDOG=1\nSTATUS=%u of %u tables ready; "
			   "loading, %llu of %llu MiB",
			   ready, all, (unsigned long long)(done >> 20),
			   (unsigned long long)(total >> 20));
	else if (!server->stopping)
		sd_notifyf(0,
			   "WATCHDOG=1\nSTATUS=%u of %u tables ready; "
			   "%u connections",
			   ready, all, server->num_clients);
	else
		sd_notify(0, "WATCHDOG=1");
}
