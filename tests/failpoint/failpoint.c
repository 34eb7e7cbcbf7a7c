/* SPDX-License-Identifier: Apache-2.0 */
/* What happens at the points of shm/failpoint.h in a test build. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "failpoint.h"

#define EXIT_CODE 43 /* of the action "exit" */
#define BAD_CODE  44 /* ENGRAM_FAILPOINT is not understood */

enum action { NOTHING, KILL, STOP, EXIT, SLEEP, HOLD, ERROR };

struct point {
	atomic_uint passed;
	unsigned int nth;
	enum action action;
	unsigned int number; /* milliseconds, or errno */
	char *fifo;
};

static const char *const names[] = {
#define X(name, who) #name,
	ENGRAM_FAILPOINT_LIST(X)
#undef X
};

static struct point points[ENGRAM_FAILPOINTS_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

__attribute__((noreturn)) static void bad(const char *text)
{
	fprintf(stderr, "ENGRAM_FAILPOINT: \"%s\": is no point or action\n",
		text);
	_exit(BAD_CODE);
}

static bool number_after(const char *text, const char *word,
			 unsigned int *number)
{
	size_t len = strlen(word);
	char *end;

	if (strncmp(text, word, len) || text[len] < '0' || text[len] > '9')
		return false;
	*number = (unsigned int)strtoul(text + len, &end, 10);
	return !*end;
}

static bool set_action(struct point *point, const char *text)
{
	if (!strcmp(text, "kill"))
		point->action = KILL;
	else if (!strcmp(text, "stop"))
		point->action = STOP;
	else if (!strcmp(text, "exit"))
		point->action = EXIT;
	else if (number_after(text, "sleep:", &point->number))
		point->action = SLEEP;
	else if (!strncmp(text, "hold:/", 6) &&
		 (point->fifo = strdup(text + 5)))
		point->action = HOLD;
	else if (number_after(text, "error:", &point->number))
		point->action = ERROR;
	return point->action != NOTHING;
}

/* One NAME[:NTH]=ACTION. */
static void take(char *text)
{
	char *action = strchr(text, '='), *nth = strchr(text, ':');
	unsigned int number = 1;
	int i;

	if (!action)
		bad(text);
	*action++ = '\0';
	if (nth && nth < action) {
		if (!number_after(nth, ":", &number) || !number)
			bad(text);
		*nth = '\0';
	}
	for (i = 0; i < ENGRAM_FAILPOINTS_COUNT; i++)
		if (!strcmp(names[i], text))
			break;
	if (i == ENGRAM_FAILPOINTS_COUNT)
		bad(text);
	points[i].nth = number;
	if (!set_action(&points[i], action))
		bad(action);
}

static void read_environment(void)
{
	const char *value = getenv("ENGRAM_FAILPOINT");
	char *text = value ? strdup(value) : NULL, *state = NULL, *word;

	for (word = text ? strtok_r(text, ";", &state) : NULL; word;
	     word = strtok_r(NULL, ";", &state))
		take(word);
	free(text);
}

static void sleep_ms(unsigned int ms)
{
	struct timespec left = {.tv_sec = ms / 1000,
				.tv_nsec = ms % 1000 * 1000000L};

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/* Say so to who reads the pipe, and wait until that one closes it. */
static void hold(const char *fifo)
{
	const int fd = open(fifo, O_WRONLY | O_CLOEXEC);
	struct pollfd end = {.fd = fd};

	if (fd < 0 || write(fd, "", 1) != 1)
		bad(fifo);
	while (poll(&end, 1, -1) < 0 && errno == EINTR)
		;
	close(fd);
}

/* Act, if it is this passing's turn; an errno to fail with, or 0. */
static int pass(enum engram_failpoint which)
{
	struct point *point = &points[which];

	pthread_once(&once, read_environment);
	if (atomic_fetch_add(&point->passed, 1) + 1 != point->nth)
		return 0;
	switch (point->action) {
	case KILL:
	case STOP:
		/* The whole process, at once, in whichever thread this is. */
		kill(getpid(), point->action == KILL ? SIGKILL : SIGSTOP);
		return 0;
	case EXIT:
		_exit(EXIT_CODE);
	case SLEEP:
		sleep_ms(point->number);
		return 0;
	case HOLD:
		hold(point->fifo);
		return 0;
	case ERROR:
		return (int)point->number;
	case NOTHING:
		break;
	}
	return 0;
}

void engram_failpoint(enum engram_failpoint point)
{
	/* A test that asks for it would test nothing. */
	if (pass(point))
		bad(names[point]);
}

enum engram_status engram_failpoint_status(enum engram_failpoint point,
					   struct engram_error *err)
{
	int sys_errno = pass(point);

	if (!sys_errno)
		return ENGRAM_OK;
	return engram_error_sys(err, sys_errno, "failpoint %s", names[point]);
}
