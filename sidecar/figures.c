/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include "clock.h"

/* `begin` to `end`, nanoseconds; no `end`: it goes on. */
static struct figures make(uint64_t total, uint64_t done, uint64_t begin,
			   uint64_t end, bool running)
{
	const uint64_t now = end ? end : clock_ns();
	const double seconds =
		begin && now > begin ? (double)(now - begin) / 1e9 : 0;
	struct figures f = {.total = total, .done = done, .eta = -1};

	f.rate = seconds > 0 ? (double)done / seconds : 0;
	if (running && f.rate > 0 && total >= done)
		f.eta = (double)(total - done) / f.rate;
	return f;
}

static bool is_checking(const struct job *job)
{
	const int phase = atomic_load(&job->phase);

	return phase == JOB_CHECKING || phase == JOB_COPYING;
}

static uint64_t total_of(const struct job *job, uint64_t bytes)
{
	const uint32_t copies = atomic_load(&job->progress.copies);

	return is_checking(job) && copies ? bytes * copies : bytes;
}

struct figures figures_of_job(const struct job *job)
{
	const struct loader_progress *p = &job->progress;
	const bool running = job->state == JOB_RUNNING;

	/* A load reads all, then verifies all. */
	return make(total_of(job, atomic_load(&p->bytes_total)),
		    is_checking(job) ? atomic_load(&p->bytes_verified)
				     : atomic_load(&p->bytes_done),
		    atomic_load(&job->phase_start_ns),
		    running ? 0 : job->end_ns, running);
}

struct figures figures_of_layer(const struct job *job, uint32_t i)
{
	const struct loader_layer_progress *p = &job->progress.layers[i];
	const struct loader_span *span =
		is_checking(job) ? &p->verifying : &p->reading;
	const uint64_t total = total_of(job, atomic_load(&p->bytes_total));
	const uint64_t done = is_checking(job) ? atomic_load(&p->bytes_verified)
					       : atomic_load(&p->bytes_done);
	const bool running = job->state == JOB_RUNNING;
	uint64_t end = atomic_load(&span->end_ns);

	if (!end && !running)
		end = job->end_ns;
	return make(total, done, atomic_load(&span->begin_ns), end, running);
}
