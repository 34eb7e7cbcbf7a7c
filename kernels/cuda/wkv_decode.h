/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_WKV_DECODE_H
#define ENGRAM_WKV_DECODE_H

#include "engram_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * codes e4m3fn [rows, cols], scales ue8m0 [ceil(rows / 32), ceil(cols / 32)]
 * -> out bf16 [rows, cols]; exact, but for scales at the ends of bf16's
 * range.
 */
enum engram_status engram_wkv_decode(const uint8_t *codes,
				     const uint8_t *scales, uint32_t rows,
				     uint32_t cols, uint16_t *out,
				     engram_stream stream,
				     struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
