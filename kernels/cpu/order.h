/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_CPU_ORDER_H
#define ENGRAM_CPU_ORDER_H

#include "gather.h"

engram_order_fn engram_cpu_order;

#endif
