/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "clock.h"
#include "figures.h"
#include "notify.h"

#define GIB 1073741824.0

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

/* "; reading demo: 3.0 of 188.8 GiB, 6.50 GiB/s, 29 s left" */
static void describe(const struct job *job, char *out, size_t size)
{
	const struct figures f = figures_of_job(job);
	char eta[32] = "";

	if (f.eta >= 0)
		snprintf(eta, sizeof(eta), ", %.0f s left", f.eta);
	snprintf(out, size, "; %s %.63s: %.1f of %.1f GiB, %.2f GiB/s%s",
		 job_phase_name((enum job_phase)atomic_load(&job->phase)),
		 job->table, (double)f.done / GIB, (double)f.total / GIB,
		 f.rate / GIB, eta);
}

void notify_tick(const struct server *server)
{
	unsigned int ready = 0, all = 0, loading = 0;
	const struct table *table;
	const struct job *job;
	char text[1024] = "";
	size_t len = 0;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	{
		all++;
		ready += table->state == ENGRAM_TABLE_READY;
	}
	TAILQ_FOREACH(job, &server->jobs.running, entry)
	{
		if (job->kind != JOB_LOAD && job->kind != JOB_RELOAD)
			continue;
		loading++;
		len = strlen(text);
		describe(job, text + len, sizeof(text) - len);
	}
	if (loading || server->stopping)
		notify_extend(30);
	if (!loading)
		snprintf(text, sizeof(text), "; %u connections",
			 server->num_clients);
	if (server->stopping && !loading)
		sd_notify(0, "WATCHDOG=1");
	else
		sd_notifyf(0, "WATCHDOG=1\nSTATUS=%u of %u tables ready%s",
			   ready, all, text);
}
