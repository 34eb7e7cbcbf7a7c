/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define REPETITIONS_MIN 3
#define REPETITIONS_MAX 100000

struct worker {
	pthread_t thread;
	struct bench *bench;
	uint32_t index;
	enum engram_status status;
};

struct bench {
	const struct bench_plan *plan;
	struct engram_table_info info;
	struct engram_layer_info layer;
	int64_t tokens, rows;
	uint64_t random;
	int32_t *ids;
	uint16_t *out;
	unsigned char *record; /* of the plain loop */
	struct worker *workers;
	double *times[2]; /* of lookup, of the plain loop */
	/* the workers' gate: a new round starts them, busy counts them */
	pthread_mutex_t lock;
	pthread_cond_t start, end;
	uint64_t round;
	uint32_t busy;
	bool quit;
};

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/*
 * Fresh ids.  Zipf(1.0): rank k with a probability of about 1/k, by the
 * inverse of the continuous distribution; ranks are spread over the rows by
 * a prime above any number of rows, so that the popular ones are not
 * neighbours.
 */
static void draw(struct bench *b)
{
	uint64_t n =
		(uint64_t)(b->layer.rows.row_end - b->layer.rows.row_begin);
	const uint64_t prime = UINT64_C(4294967291);
	double log_n = log((double)n + 1), u;
	uint64_t row;
	int64_t i;

	for (i = 0; i < b->rows; i++) {
		u = (double)(next_random(&b->random) >> 11) * 0x1p-53;
		if (b->plan->distribution == BENCH_UNIFORM)
			row = (uint64_t)(u * (double)n);
		else
			row = ((uint64_t)exp(u * log_n) - 1) % n * prime % n;
		b->ids[i] = (int32_t)(b->layer.rows.row_begin + (int64_t)row);
	}
}

static enum engram_status lookup(const struct bench *b, int64_t first,
				 int64_t count)
{
	return engram_lookup(
		b->plan->table, 0, b->ids + first * b->info.num_cols,
		b->info.num_cols, 1, count,
		b->out + first * b->info.num_cols * b->info.dim, NULL);
}

/* False when it is time to end. */
static bool wait_round(struct bench *b, uint64_t *round)
{
	bool quit;

	pthread_mutex_lock(&b->lock);
	while (b->round == *round && !b->quit)
		pthread_cond_wait(&b->start, &b->lock);
	*round = b->round;
	quit = b->quit;
	pthread_mutex_unlock(&b->lock);
	return !quit;
}

/* The tokens of one thread. */
static void look_up_share(struct worker *w)
{
	struct bench *b = w->bench;
	int64_t first = b->tokens * w->index / b->plan->threads;
	int64_t end = b->tokens * (w->index + 1) / b->plan->threads;

	if (!w->status)
		w->status = lookup(b, first, end - first);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct bench *b = w->bench;
	uint64_t round = 0;

	while (wait_round(b, &round)) {
		look_up_share(w);
		pthread_mutex_lock(&b->lock);
		if (!--b->busy)
			pthread_cond_signal(&b->end);
		pthread_mutex_unlock(&b->lock);
	}
	return NULL;
}

/* The calling thread is worker 0, so that one thread needs no waking. */
static void run_round(struct bench *b)
{
	pthread_mutex_lock(&b->lock);
	b->busy = b->plan->threads - 1;
	b->round++;
	pthread_cond_broadcast(&b->start);
	pthread_mutex_unlock(&b->lock);
	look_up_share(&b->workers[0]);
	pthread_mutex_lock(&b->lock);
	while (b->busy)
		pthread_cond_wait(&b->end, &b->lock);
	pthread_mutex_unlock(&b->lock);
}

static double time_lookup(struct bench *b)
{
	double begin;

	draw(b);
	begin = now();
	run_round(b);
	return now() - begin;
}

static double time_plain(struct bench *b)
{
	double begin;

	draw(b);
	begin = now();
	bench_plain(&b->layer.rows, b->ids, b->rows, b->record, b->out);
	return now() - begin;
}

static bool is_nan(uint16_t bf16)
{
	return (bf16 & 0x7fff) > 0x7f80;
}

/* Also touches all memory once, before anything is timed. */
static bool same_bits(struct bench *b, uint16_t *other)
{
	size_t count = (size_t)(b->rows * b->info.dim), i;

	time_lookup(b);
	bench_plain(&b->layer.rows, b->ids, b->rows, b->record, other);
	for (i = 0; i < count; i++)
		if (b->out[i] != other[i] &&
		    !(is_nan(b->out[i]) && is_nan(other[i])))
			return false;
	return true;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct bench_times summarise(double *times, int64_t count)
{
	qsort(times, (size_t)count, sizeof(*times), by_size);
	return (struct bench_times){
		.min = times[0],
		.median =
			count % 2
				? times[count / 2]
				: (times[count / 2 - 1] + times[count / 2]) / 2,
	};
}

static bool go_on(const struct bench_plan *plan, int64_t done, double begin)
{
	if (plan->repeat)
		return done < plan->repeat;
	return done < REPETITIONS_MIN ||
	       (done < REPETITIONS_MAX && now() - begin < plan->seconds);
}

static void measure(struct bench *b, uint16_t *other, struct bench_result *out)
{
	double begin;
	int64_t n = 0;

	out->rows = b->rows;
	out->identical = same_bits(b, other);
	begin = now();
	while (go_on(b->plan, n, begin)) {
		b->times[0][n] = time_lookup(b);
		b->times[1][n] = time_plain(b);
		n++;
	}
	out->repetitions = n;
	out->lookup = summarise(b->times[0], n);
	out->plain = summarise(b->times[1], n);
}

static enum engram_status run_workers(struct bench *b, uint16_t *other,
				      struct bench_result *out,
				      struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t started, i;
	int failed;

	for (i = 0; i < b->plan->threads; i++)
		b->workers[i] = (struct worker){.bench = b, .index = i};
	for (started = 1; started < b->plan->threads; started++) {
		failed = pthread_create(&b->workers[started].thread, NULL, work,
					&b->workers[started]);
		if (failed) {
			status = engram_error_sys(err, failed, "thread %u",
						  started);
			break;
		}
	}
	if (!status)
		measure(b, other, out);
	pthread_mutex_lock(&b->lock);
	b->quit = true;
	pthread_cond_broadcast(&b->start);
	pthread_mutex_unlock(&b->lock);
	for (i = 1; i < started; i++)
		pthread_join(b->workers[i].thread, NULL);
	for (i = 0; i < started && !status; i++)
		if (b->workers[i].status)
			status = engram_error_set(err, b->workers[i].status,
						  "lookup failed");
	return status;
}

enum engram_status bench_run(const struct bench_plan *plan,
			     struct bench_result *out, struct engram_error *err)
{
	size_t slots = plan->repeat ? (size_t)plan->repeat : REPETITIONS_MAX;
	enum engram_status status = ENGRAM_ENOMEM;
	struct bench b = {
		.plan = plan,
		.random = (uint64_t)time(NULL),
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.start = PTHREAD_COND_INITIALIZER,
		.end = PTHREAD_COND_INITIALIZER,
	};
	uint16_t *other;
	size_t values;

	engram_table_info(plan->table, &b.info);
	engram_layer_info(plan->table, 0, &b.layer);
	b.tokens = (plan->rows + b.info.num_cols - 1) / b.info.num_cols;
	b.rows = b.tokens * b.info.num_cols;
	values = (size_t)b.rows * b.info.dim;
	b.workers = calloc(plan->threads, sizeof(*b.workers));
	b.ids = calloc((size_t)b.rows, sizeof(*b.ids));
	b.out = calloc(values, sizeof(*b.out));
	other = calloc(values, sizeof(*other));
	b.record = malloc(engram_record_bytes(plan->table));
	b.times[0] = calloc(slots, sizeof(double));
	b.times[1] = calloc(slots, sizeof(double));
	if (b.workers && b.ids && b.out && other && b.record && b.times[0] &&
	    b.times[1])
		status = run_workers(&b, other, out, err);
	else
		engram_error_set(err, status, "no memory for %lld rows",
				 (long long)b.rows);
	free(b.workers);
	free(b.ids);
	free(b.out);
	free(other);
	free(b.record);
	free(b.times[0]);
	free(b.times[1]);
	return status;
}
