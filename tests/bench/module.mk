# SPDX-License-Identifier: Apache-2.0
# The benchmarks need a GPU, torch and Triton (run_all.sh); here only their
# parts that do not are tested.
ifneq ($(HAVE_CUDA),)
ATTACH_PROBE := $B/tests/attach_probe
ATTACH_PROBE_OBJ := $(call objs,tests/bench/attach_probe.c)
$(ATTACH_PROBE_OBJ): EXTRA_CFLAGS := $(CUDA_CPPFLAGS)
$(ATTACH_PROBE): $(ATTACH_PROBE_OBJ) $(LIBENGRAM_CUDA_SO)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../lib' -o $@ $< \
		-L$B/lib -lengram_cuda -lengram $(CUDA_LDLIBS)
# The same with the CUDA runtime of tests/cuda, to try the benchmark without a
# GPU.
ATTACH_PROBE_FAKE := $B/tests/attach_probe_fake
$(ATTACH_PROBE_FAKE): $(ATTACH_PROBE_OBJ) $$(CUDA_FAKE_OBJ) \
		$$(CUDA_TABLE_OBJ) $B/obj/kernels/cuda/launch.o $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
ALL += $(ATTACH_PROBE)
CHECK_DEPS += $(ATTACH_PROBE_FAKE)
endif

BENCH_PROBES := $B/tests/memory_probe $B/tests/load_probe
$(BENCH_PROBES): $B/tests/%: $B/obj/tests/bench/%.o $$(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
ALL += $(BENCH_PROBES)
CHECK_DEPS += $(BENCH_PROBES)

ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/bench
CHECK_DEPS += $(KERNELS_TEST_SO) $(ENGRAMD) $(SYNTH)
endif
