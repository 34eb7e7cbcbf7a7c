# SPDX-License-Identifier: Apache-2.0
KERNELS_SRC := $(wildcard kernels/*.c kernels/cpu/*.c)
ifeq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
KERNELS_SRC := $(filter-out %_avx2.c %_avx512.c,$(KERNELS_SRC))
endif
LIBKERNELS := $B/lib/libengram_kernels.a
$(LIBKERNELS): $(call objs,$(KERNELS_SRC))
# The row loops are left to the compiler's vectors; it may not have them where
# a floating-point exception or errno could tell.  Neither changes a bit.
ROWS_CFLAGS := $(if $(COVERAGE),,-O3 -fno-trapping-math -fno-math-errno)
AVX2_CFLAGS := -mavx2 -mbmi2 $(ROWS_CFLAGS)
AVX512_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl $(AVX2_CFLAGS)
$B/obj/kernels/cpu/rows_scalar.o: EXTRA_CFLAGS := $(ROWS_CFLAGS)
$B/obj/kernels/cpu/%_avx2.o: EXTRA_CFLAGS := $(AVX2_CFLAGS)
$B/obj/kernels/cpu/%_avx512.o: EXTRA_CFLAGS := $(AVX512_CFLAGS)
ALL += $(LIBKERNELS)

# The kernels as a shared object with every symbol exported, for the Python
# tests: the library's own objects hide them.
KERNELS_TEST_SO := $B/tests/libkernels_test.so
KERNELS_TEST_OBJ := $(patsubst %.c,$B/obj-test/%.o,$(KERNELS_SRC) \
		      shm/error.c shm/status.c)
$B/obj-test/kernels/cpu/%_avx2.o: EXTRA_CFLAGS := $(AVX2_CFLAGS)
$B/obj-test/kernels/cpu/%_avx512.o: EXTRA_CFLAGS := $(AVX512_CFLAGS)
$B/obj-test/%.o: %.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) -fvisibility=default $(CFLAGS) \
		$(EXTRA_CFLAGS) -MMD -MP -c -o $@ $<
$(KERNELS_TEST_SO): $(KERNELS_TEST_OBJ)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $^ -lm
-include $(patsubst %.o,%.d,$(KERNELS_TEST_OBJ))
