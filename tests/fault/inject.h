/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make calls of the C library fail, one at a time.
 *
 * The linker puts the wrappers of inject.c between the objects of a program
 * and the C library: link inject.o and $(INJECT_WRAPS:%=-Wl,--wrap=%), see
 * module.mk.  Calls that a shared library makes itself are not seen.
 *
 *	for (nth = 1;; nth++) {
 *		inject_arm(&(struct inject_plan){.nth = nth});
 *		status = what_is_tested();
 *		if (!inject_disarm())
 *			break;	// there was no nth call: status is that of
 *				// a life without faults
 *		... status is an error, nothing is left behind ...
 *	}
 */
#ifndef TESTS_FAULT_INJECT_H
#define TESTS_FAULT_INJECT_H

#include <stdbool.h>

struct inject_plan {
	int nth;	   /* of the calls that match, from 1 */
	const char *calls; /* "malloc calloc": only these; NULL: all */
	int number;	   /* errno; 0: one that is usual for the call */
	bool interrupt;	   /* only calls that can be, and by EINTR */
	bool any_thread;   /* not only calls of the thread that armed */
	bool sticky;	   /* all from the nth on fail, not it alone */
};

/* One plan at a time in a process; the strings are not copied. */
void inject_arm(const struct inject_plan *plan);

/* Nothing fails from here on.  Did anything? */
bool inject_disarm(void);

/* The call that failed last, or "nothing". */
const char *inject_call(void);

/* For wrappers elsewhere: 0, or the errno that this call shall fail with,
 * `usual` if the plan does not say. */
int inject_fault(const char *call, bool interruptible, int usual);

#endif
