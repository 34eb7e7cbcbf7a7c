# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, tested by way of the shim.  Built wherever nvcc is, so that
# it is known to link; without a GPU the programs say so and exit 77.
#
#   make gpu-tests      all of it, and the Python tests of the kernels
ifneq ($(HAVE_CUDA),)
GPU_DIR := $B/tests/gpu
GPU_SHIM_SRC := $(wildcard tests/gpu/shim_*.c)
# Its ring is served by engramd's code.
GPU_SERVE_SRC := sidecar/gather_ring.c
GPU_SHIM_OBJ := $(call objs,$(GPU_SHIM_SRC) $(GPU_SERVE_SRC))
GPU_RANDOM_OBJ := $(call objs,$(wildcard tests/gpu/random*.c))
GPU_GRAPH_OBJ := $(call objs,$(wildcard tests/gpu/graph_*.c) \
		   tests/gpu/random.c)
GPU_CLOSE_OBJ := $(call objs,tests/golden/gate_close.c)
GPU_LIBS = $(LIBKERNELS_CUDA) $(LIBKERNELS) $(LIBSHM)
GPU_LDLIBS = $(CUDA_LDLIBS) -lm
GPU_CFLAGS := $(CUDA_CPPFLAGS) -Itests/gpu -Itests/golden
$B/obj/tests/gpu/%.o $B/obj-test/tests/gpu/%.o: EXTRA_CFLAGS := $(GPU_CFLAGS)

# Tests written for the CPU backend, compiled to call the shim.
GPU_GOLDEN_OBJ := $(patsubst %.c,$B/obj-gpu/%.o,$(GOLDEN_SRC))
$B/obj-gpu/%.o: %.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) \
		-include tests/gpu/shim_names.h -MMD -MP -c -o $@ $<
-include $(GPU_GOLDEN_OBJ:.o=.d)

GPU_GOLDEN := $(GPU_DIR)/golden_runner_cuda
$(GPU_GOLDEN): $(GPU_GOLDEN_OBJ) $(call objs,tests/gpu/cuda_main.c)
$(GPU_GOLDEN): LDLIBS = $(call pkg_libs,jansson)
GPU_RANDOM := $(GPU_DIR)/test_random
$(GPU_RANDOM): $(call objs,tests/gpu/test_random.c) $(GPU_RANDOM_OBJ) \
	$(GPU_CLOSE_OBJ)
GPU_GRAPH := $(GPU_DIR)/test_graph
$(GPU_GRAPH): $(call objs,tests/gpu/test_graph.c) $(GPU_GRAPH_OBJ) \
	$(GPU_CLOSE_OBJ)
# What it asks for needs no GPU: it runs everywhere.
GPU_NOTHING := $(GPU_DIR)/test_nothing
$(GPU_NOTHING): $(call objs,tests/gpu/test_nothing.c)
$(GPU_NOTHING): LDLIBS = $(call pkg_libs,cmocka)
GPU_TESTS := $(GPU_GOLDEN) $(GPU_RANDOM) $(GPU_GRAPH) $(GPU_NOTHING)
$(GPU_TESTS): $(GPU_SHIM_OBJ) $$(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
		$(LDLIBS) $(GPU_LDLIBS)

# For the Python tests: the kernels of the CPU, and the shim beside them.
KERNELS_GPU_TEST_SO := $(GPU_DIR)/libkernels_gpu_test.so
GPU_SHIM_TEST_OBJ := $(patsubst %.c,$B/obj-test/%.o,$(GPU_SHIM_SRC) \
	$(GPU_SERVE_SRC) $(wildcard shm/ring*.c))
-include $(GPU_SHIM_TEST_OBJ:.o=.d)
$(KERNELS_GPU_TEST_SO): $(GPU_SHIM_TEST_OBJ) $$(KERNELS_TEST_OBJ) \
		$(LIBKERNELS_CUDA)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $^ $(GPU_LDLIBS)

# The sanitizers take address space that CUDA wants: built, but not run.
ifeq ($(SANITIZE),)
CHECK_TESTS += $(GPU_TESTS)
endif
CHECK_DEPS += $(GPU_TESTS) $(KERNELS_GPU_TEST_SO)

.PHONY: gpu-tests
gpu-tests: $$(GPU_TESTS) $$(KERNELS_GPU_TEST_SO)
	$(Q)$(RUN_ENV) ENGRAM_KERNELS_LIB=$(abspath $(KERNELS_GPU_TEST_SO)) \
		$(PYTHON) tests/check.py --build $B \
		--pytest tests/kernels/test_property.py \
		--pytest tests/kernels/test_gate_sp_rows.py $(GPU_TESTS)
endif
