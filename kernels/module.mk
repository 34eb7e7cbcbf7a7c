# SPDX-License-Identifier: Apache-2.0
KERNELS_SRC := $(wildcard kernels/*.c kernels/cpu/*.c)
LIBKERNELS := $B/lib/libengram_kernels.a
$(LIBKERNELS): $(call objs,$(KERNELS_SRC))
$B/obj/kernels/cpu/%_avx2.o: EXTRA_CFLAGS := -mavx2 -mf16c -mbmi2
$B/obj/kernels/cpu/%_avx512.o: EXTRA_CFLAGS := -mavx512f -mavx512bw \
	-mavx512dq -mavx512vl -mavx2 -mbmi2
ALL += $(LIBKERNELS)
