# SPDX-License-Identifier: Apache-2.0
# The Python client against a real engramd.  The sanitizers' run-times are not
# in the interpreter, so plain builds only.
#
# Without a GPU its CUDA part runs on the fake device of tests/cuda: a
# libengram_cuda whose arrays are host memory.
ifeq ($(SANITIZE)$(COVERAGE),)
ifneq ($(HAVE_CUDA),)
FAKE_CUDA_SO := $B/tests/fake_cuda/$(LIBENGRAM_CUDA_SONAME)
$B/obj/tests/python/fake_rest.o: EXTRA_CFLAGS := $(CUDA_TEST_FLAGS)
$(FAKE_CUDA_SO): $$(CUDA_TABLE_OBJ) $$(CUDA_FAKE_OBJ) \
		$B/obj/tests/python/fake_rest.o $B/obj/kernels/cuda/launch.o \
		$(LIBENGRAM_SO) $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)ln -sf ../../lib/$(LIBENGRAM_SONAME) $(@D)/$(LIBENGRAM_SONAME)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(LIBENGRAM_CUDA_SONAME) \
		-Wl,-rpath,'$$ORIGIN' -o $@ $(filter %.o,$^) -L$B/lib \
		-lengram $(LIBKERNELS) $(LIBSHM) -lm
CHECK_DEPS += $(FAKE_CUDA_SO)
endif
CHECK_PYTEST += tests/python
CHECK_DEPS += $(LIBENGRAM_SO) $(ENGRAMD) $(SYNTH)
endif
