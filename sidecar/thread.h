/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_THREAD_H
#define ENGRAMD_THREAD_H

#include <pthread.h>
#include <signal.h>

/* A thread that takes no signals: those are the loop's.  Returns 0 or errno. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *),
			       void *arg)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

#endif
