/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named points at which a test can have the program die, stop, wait or fail.
 * They exist in the test builds of tests/failpoint only (ENGRAM_FAILPOINTS);
 * elsewhere the macros are empty, and what is installed has no trace of them.
 *
 *	FAILPOINT(load_planned);
 *	status = FAILPOINT_STATUS(load_locked, err);   also takes "error"
 *
 * ENGRAM_FAILPOINT in the environment says what happens, see
 * tests/failpoint/README.md:
 *
 *	NAME[:NTH]=kill|stop|exit|sleep:MS|hold:FIFO|error:ERRNO[;...]
 *
 * A new point is a row here; the tests fail if their scenario never passes
 * it.  The second column is who passes it: sidecar or client.
 */
#ifndef ENGRAM_FAILPOINT_H
#define ENGRAM_FAILPOINT_H

#include "engram_error.h"

#define ENGRAM_FAILPOINT_LIST(X)                                              \
	/* starting */                                                        \
	X(own_locked, sidecar)	  /* the control page is locked */            \
	X(own_withdrawn, sidecar) /* its epoch is 0, its tables are gone */   \
	X(own_written, sidecar)	  /* it is the new owner's */                 \
	X(start_cleaned, sidecar) /* what nobody can adopt is removed */      \
	X(start_listening, sidecar)                                           \
	/* adopting */                                                        \
	X(adopt_listed, sidecar)                                              \
	X(adopt_mapped, sidecar) /* one layer, not compared yet */            \
	X(adopt_taken, sidecar)	 /* all layers of a generation */             \
	X(adopt_cleaned, sidecar)                                             \
	/* loading */                                                         \
	X(load_described, sidecar) /* config.json and tokens are read */      \
	X(load_opened, sidecar)	   /* the checkpoint is understood */         \
	X(load_planned, sidecar)   /* sizes are known */                      \
	X(load_admitted, sidecar)  /* memory is promised */                   \
	X(segment_named, sidecar)  /* the temporary name, of no size */       \
	X(segment_created, sidecar)                                           \
	X(place_unready, sidecar) /* a segment to be overwritten is not ready \
				   * any more */                              \
	X(place_blank, sidecar)	  /* it has no header */                      \
	X(place_taken, sidecar)	  /* it is the next generation's */           \
	X(load_block, sidecar)	  /* a block of rows is packed */             \
	X(load_filled, sidecar)	  /* all layers are */                        \
	X(load_checked, sidecar)  /* all layers are read back */              \
	X(load_locked, sidecar)                                               \
	X(copy_begin, sidecar)	/* a layer's copy for another node is made */ \
	X(copy_done, sidecar)	/* it is filled and read back */              \
	X(copy_mended, sidecar) /* what was adopted has all its copies */     \
	/* publishing */                                                      \
	X(segment_ready, sidecar)  /* the header says so, there is no name */ \
	X(segment_linked, sidecar) /* both names are there */                 \
	X(segment_published, sidecar)                                         \
	X(publish_identified, sidecar) /* all layers */                       \
	X(publish_begin, sidecar)      /* the loop has the generation */      \
	X(publish_midway, sidecar)     /* the page is in between */           \
	X(publish_shown, sidecar)      /* the page shows it */                \
	/* attaching */                                                       \
	X(attach_asked, sidecar)                                              \
	X(attach_leased, sidecar)                                             \
	X(attach_answered, sidecar) /* the answer is not sent yet */          \
	X(attach_sent, sidecar)	    /* with its descriptors */                \
	/* letting go */                                                      \
	X(detach_asked, sidecar)                                              \
	X(detach_done, sidecar)                                               \
	X(park_asked, sidecar)                                                \
	X(park_done, sidecar)                                                 \
	X(free_begin, sidecar)                                                \
	X(free_unlinked, sidecar) /* a layer's name, not its memory */        \
	X(free_done, sidecar)                                                 \
	X(old_free_begin, sidecar) /* of a superseded generation */           \
	X(old_free_done, sidecar)                                             \
	/* stopping */                                                        \
	X(stop_begin, sidecar)                                                \
	X(stop_deaf, sidecar) /* the socket is gone */                        \
	X(stop_freed, sidecar)                                                \
	X(stop_withdrawn, sidecar) /* the control page is empty */            \
	X(stop_unlinked, sidecar)  /* and has no name */                      \
	/* libengram */                                                       \
	X(client_asks, client)	   /* before the request */                   \
	X(client_answered, client) /* descriptors are here, nothing mapped */ \
	X(client_mapped, client)                                              \
	X(client_prepared, client) /* the next generation is leased too */    \
	X(client_moved, client)	   /* and used, the one before not let go */  \
	X(client_detaches, client)                                            \
	X(client_detached, client) /* told, still mapped */

#ifdef ENGRAM_FAILPOINTS

enum engram_failpoint {
#define X(name, who) FAILPOINT_##name,
	ENGRAM_FAILPOINT_LIST(X)
#undef X
		ENGRAM_FAILPOINTS_COUNT
};

void engram_failpoint(enum engram_failpoint point);
enum engram_status engram_failpoint_status(enum engram_failpoint point,
					   struct engram_error *err);

#define FAILPOINT(name) engram_failpoint(FAILPOINT_##name)
#define FAILPOINT_STATUS(name, err) \
	engram_failpoint_status(FAILPOINT_##name, err)

#else

#define FAILPOINT(name)		    ((void)0)
#define FAILPOINT_STATUS(name, err) ENGRAM_OK

#endif
#endif
