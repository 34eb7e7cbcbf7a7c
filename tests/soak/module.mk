# SPDX-License-Identifier: Apache-2.0
# A reader of rows that checks them all, and the long run that uses it.
ROW_READER := $B/tests/row_reader
$(ROW_READER): $(call objs,tests/soak/row_reader.c tests/soak/reader.c) $(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
CHECK_DEPS += $(ROW_READER)
CHECK_PYTEST += tests/soak

ifneq ($(HAVE_CUDA),)
# The same on the fake device, and on a real one.
CUDA_READER := $B/tests/row_reader_cuda
CUDA_READER_FAKE := $(CUDA_READER)_fake
$B/obj/tests/soak/row_reader_cuda.o: EXTRA_CFLAGS := $(CUDA_TEST_FLAGS)
$(CUDA_READER_FAKE): $(call objs,tests/soak/row_reader_cuda.c \
		tests/soak/reader.c) $(CUDA_FAKE_OBJ) \
		$B/obj/kernels/cuda/launch.o $(CUDA_TABLE_OBJ) $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
CHECK_DEPS += $(CUDA_READER_FAKE)

# The sanitizers take address space that CUDA wants.
ifeq ($(SANITIZE)$(COVERAGE),)
CUDA_READER_OBJ := $B/obj-gpu/tests/soak/row_reader_cuda.o
$(CUDA_READER_OBJ): tests/soak/row_reader_cuda.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(CUDA_CPPFLAGS) \
		-MMD -MP -c -o $@ $<
-include $(CUDA_READER_OBJ:.o=.d)
$(CUDA_READER): $(CUDA_READER_OBJ) $(call objs,tests/soak/reader.c) \
		$(CUDA_TABLE_OBJ) $(LIBKERNELS_CUDA) $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS) $(CUDA_LDLIBS)
CHECK_DEPS += $(CUDA_READER)
endif
endif

# The long form: make soak SECONDS=3600
.PHONY: soak
soak: all $(ROW_READER)
	$(Q)$(RUN_ENV) env ENGRAM_BUILD=$B $(PYTHON) tests/soak/soak.py \
		--seconds $(or $(SECONDS),600)
