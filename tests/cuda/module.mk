# SPDX-License-Identifier: Apache-2.0
# libengram_cuda against a sidecar of the tests' own, with a fake CUDA runtime;
# and test_cuda_attach once more for a GPU.
ifneq ($(HAVE_CUDA),)
CUDA_TEST_SRC := $(wildcard tests/cuda/test_*.c)
CUDA_TEST_BIN := $(patsubst tests/cuda/%.c,$B/tests/%,$(CUDA_TEST_SRC))
CUDA_FAKE_OBJ := $(call objs,$(wildcard tests/cuda/fake_*.c))
CUDA_SETTING_OBJ := $(call objs,tests/cuda/setting.c)
CUDA_TABLE_OBJ := $(call objs,$(addprefix clients/cuda/,attach.c block.c \
		    device.c gather.c gather_lookup.c gather_measure.c \
		    gather_prefetch.c gather_rescue.c gather_sieve.c \
		    gather_watch.c prepare.c refresh.c register.c table.c \
		    version.c))
CUDA_TEST_FLAGS := $(CUDA_CPPFLAGS) -Itests/client -Ikernels/cuda -DFAKE_CUDA
$(CUDA_FAKE_OBJ) $(CUDA_SETTING_OBJ) $(CUDA_TEST_SRC:%.c=$B/obj/%.o): \
	EXTRA_CFLAGS := $(CUDA_TEST_FLAGS)
$(CUDA_TEST_BIN): $B/tests/%: $B/obj/tests/cuda/%.o $(CUDA_FAKE_OBJ) \
		$(CUDA_TABLE_OBJ) $B/obj/kernels/cuda/launch.o \
		$(CUDA_SETTING_OBJ) $B/obj/tests/client/fake.o $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(CUDA_TEST_LDFLAGS) -o $@ $^ \
		$(LIBENGRAM_LDLIBS) $(call pkg_libs,cmocka)
$B/tests/test_cuda_faults: $$(INJECT_OBJ)
$B/tests/test_cuda_faults: CUDA_TEST_LDFLAGS = $(INJECT_LDFLAGS)
$B/tests/test_cuda_life: CUDA_TEST_LDFLAGS := -Wl,--wrap=mmap
CHECK_TESTS += $(CUDA_TEST_BIN)
CHECK_DEPS += $(CUDA_TEST_BIN)

# The sanitizers take address space that CUDA wants.
ifeq ($(SANITIZE)$(COVERAGE),)
GPU_ATTACH := $B/tests/gpu_attach
$B/obj-gpu/tests/cuda/test_cuda_attach.o: tests/cuda/test_cuda_attach.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(CUDA_CPPFLAGS) \
		-Itests/client -MMD -MP -c -o $@ $<
-include $B/obj-gpu/tests/cuda/test_cuda_attach.d
$(GPU_ATTACH): $B/obj-gpu/tests/cuda/test_cuda_attach.o $(CUDA_TABLE_OBJ) \
		$(CUDA_SETTING_OBJ) $B/obj/tests/client/fake.o \
		$(LIBKERNELS_CUDA) $$(LIBCLIENT) $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS) $(CUDA_LDLIBS) \
		$(call pkg_libs,cmocka)
CHECK_TESTS += $(GPU_ATTACH)
CHECK_DEPS += $(GPU_ATTACH)

# Clients of a real engramd, on the fake device and on a real one.
REAL_CUDA := $(addprefix $B/tests/,gather_cuda refresh_cuda)
REAL_CUDA_FAKE := $(addsuffix _fake,$(REAL_CUDA))
$(patsubst $B/tests/%,$B/obj/tests/cuda/%.o,$(REAL_CUDA)): \
	EXTRA_CFLAGS := $(CUDA_TEST_FLAGS)
$(REAL_CUDA_FAKE): $B/tests/%_fake: $B/obj/tests/cuda/%.o $(CUDA_FAKE_OBJ) \
		$B/obj/kernels/cuda/launch.o $(CUDA_TABLE_OBJ) $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
REAL_CUDA_OBJ := $(patsubst $B/tests/%,$B/obj-gpu/tests/cuda/%.o,$(REAL_CUDA))
$(REAL_CUDA_OBJ): $B/obj-gpu/tests/cuda/%.o: tests/cuda/%.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(CUDA_CPPFLAGS) \
		-MMD -MP -c -o $@ $<
-include $(REAL_CUDA_OBJ:.o=.d)
$(REAL_CUDA): $B/tests/%: $B/obj-gpu/tests/cuda/%.o $(CUDA_TABLE_OBJ) \
		$(LIBKERNELS_CUDA) $$(LIBCLIENT) $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS) $(CUDA_LDLIBS)
CHECK_DEPS += $(REAL_CUDA) $(REAL_CUDA_FAKE)

# The example, against a real sidecar.
CHECK_PYTEST += tests/cuda
CHECK_DEPS += $(LIBENGRAM_CUDA_EXAMPLE) $(LIBENGRAM_EXAMPLE)
endif
endif
