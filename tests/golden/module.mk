# SPDX-License-Identifier: Apache-2.0
GOLDEN_SRC := $(wildcard tests/golden/*.c)
GOLDEN_RUNNER := $B/tests/golden_runner
$(GOLDEN_RUNNER): $(call objs,$(GOLDEN_SRC)) $(LIBKERNELS) $(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(call pkg_libs,jansson) -lm
CHECK_TESTS += $(GOLDEN_RUNNER)
CHECK_DEPS += $(GOLDEN_RUNNER)
