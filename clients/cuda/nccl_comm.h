/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_NCCL_COMM_H
#define ENGRAM_NCCL_COMM_H

#include "engram_comm.h"

/* engram_nccl_comm, with the error apart. */
enum engram_status engram_nccl_describe(void *nccl_comm,
					struct engram_comm *out,
					struct engram_error *err);

#endif
