/* SPDX-License-Identifier: Apache-2.0 */
/* What is behind the writer's handle. */
#ifndef ENGRAM_SHM_SEGMENT_WRITER_H
#define ENGRAM_SHM_SEGMENT_WRITER_H

#include "segment.h"

/* Of a published memfd. */
#define SEGMENT_SEALS \
	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

struct engram_segment_writer {
	struct engram_backing backing;
	char name[256];	     /* published */
	char temporary[256]; /* before that */
	int created;	     /* the temporary name is ours */
	int published;	     /* and so is the final one, or it is kept */
	int fd;
	char *base;
	uint64_t map_bytes;
	uint64_t page_bytes;
};

/* A call that takes memory has failed by errno, when `needed` bytes were still
 * wanted: ENGRAM_ENOSPACE with both figures if that is what it was. */
enum engram_status segment_call_failed(const struct engram_segment_writer *w,
				       const char *call, uint64_t needed,
				       struct engram_error *err);
/* What a segment of this spec begins with while it is written, its blocks
 * apart, which segment_write_header copies. */
enum engram_status segment_begin_header(const struct engram_segment_spec *spec,
					struct engram_segment_header *h,
					struct engram_error *err);
void segment_write_header(char *base, const struct engram_segment_header *h,
			  const struct engram_segment_spec *spec);
void segment_set_names(struct engram_segment_writer *w,
		       const struct engram_segment_spec *spec);

/* All w->map_bytes of `fd`, which is w's file, in pages of w->page_bytes; not
 * for children.  On an error *base is NULL. */
enum engram_status segment_map_all(const struct engram_segment_writer *w,
				   int fd, int prot, char **base,
				   struct engram_error *err);

/* A fix for errors that have none. */
void segment_usual_fix(const struct engram_segment_writer *w,
		       struct engram_error *err);

/* Unmap, close and free; names stay. */
void segment_writer_close(struct engram_segment_writer *w);

#endif
