/* SPDX-License-Identifier: Apache-2.0 */
#include "rows_body.h"

const struct engram_row_fns engram_row_fns_avx2 = {decode_row, gate_row};
