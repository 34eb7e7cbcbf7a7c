# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism, with every rank in a thread; see loopback.h.
COMM_TEST := $B/tests/test_gather
LOOPBACK_OBJ := $B/obj/tests/comm/loopback.o
COMM_OBJ := $(call objs,$(wildcard tests/comm/*.c))
$(COMM_OBJ): override CPPFLAGS += -Itests/golden
$(COMM_TEST): $B/obj/tests/comm/test_gather.o $(LOOPBACK_OBJ) \
		$B/obj/tests/golden/safetensors_case.o $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(call pkg_libs,jansson cmocka) -lm
CHECK_TESTS += $(COMM_TEST)
CHECK_DEPS += $(COMM_TEST)

# On a GPU, with device memory; skipped where there is none.  The sanitizers
# take address space that CUDA wants.
ifneq ($(HAVE_CUDA),)
ifeq ($(SANITIZE)$(COVERAGE),)
COMM_CUDA_SRC := $(wildcard tests/comm/test_cuda_*.c)
COMM_CUDA_BIN := $(patsubst tests/comm/%.c,$B/tests/%,$(COMM_CUDA_SRC))
COMM_CUDA_PARTS := device layer wkv wkv_create cublaslt nccl
COMM_CUDA_OBJ := $(COMM_CUDA_PARTS:%=$B/obj/clients/cuda/%.o)
$(COMM_OBJ): override CPPFLAGS += $(CUDA_CPPFLAGS)
$(COMM_CUDA_BIN): $B/tests/%: $B/obj/tests/comm/%.o $(LOOPBACK_OBJ) \
		$B/obj/tests/comm/cuda_test.o $B/obj/tests/comm/layer_model.o \
		$(COMM_CUDA_OBJ) $$(LIBCLIENT) $$(LIBKERNELS_CUDA) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $^ \
		$(CUDA_LDLIBS) $(call pkg_libs,cmocka) -lm
CHECK_TESTS += $(COMM_CUDA_BIN)
CHECK_DEPS += $(COMM_CUDA_BIN)
endif
endif
