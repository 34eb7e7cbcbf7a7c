/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both backends can say of arguments without looking at the data that
 * they point to.
 */
#ifndef ENGRAM_CHECK_H
#define ENGRAM_CHECK_H

#include "engram_kernels.h"

#define ENGRAM_HASH_MAX_NGRAM 16

#ifdef __cplusplus
extern "C" {
#endif

/* ENGRAM_EINVAL: "path: what". */
enum engram_status engram_invalid(struct engram_error *err, const char *path,
				  const char *what, const char *fix);

enum engram_status engram_check_hash(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     struct engram_error *err);
/* Of a batch with a slot cache. */
enum engram_status engram_check_slots(const struct engram_hash_batch *batch,
				      struct engram_error *err);
enum engram_status engram_check_lookup(const struct engram_rows *rows,
				       const struct engram_lookup_args *args,
				       const uint16_t *out,
				       struct engram_error *err);
enum engram_status engram_check_layout(const struct engram_raw_out *out,
				       struct engram_error *err);
enum engram_status engram_check_raw(const struct engram_rows *rows,
				    const struct engram_lookup_args *args,
				    const struct engram_raw_out *out,
				    struct engram_error *err);
enum engram_status engram_check_decode(const struct engram_rows *rows,
				       int64_t num_rows, const uint16_t *out,
				       struct engram_error *err);
enum engram_status engram_check_gate(const struct engram_gate_args *args,
				     const uint16_t *out,
				     struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
