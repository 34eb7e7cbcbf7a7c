# SPDX-License-Identifier: Apache-2.0
# The sidecar as a process: engramd.py starts it on checkpoints that
# engram-synth wrote.
FAIL_MALLOC := $B/tests/fail_malloc.so
$(FAIL_MALLOC): $B/obj/tests/integration/fail_malloc.o
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $^
CHECK_PYTEST += tests/integration
CHECK_DEPS += $(FAIL_MALLOC)
# A client that has rows gathered.
GATHER_PROBE := $B/tests/gather_probe
$(GATHER_PROBE): $B/obj/tests/integration/gather_probe.o $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
CHECK_DEPS += $(GATHER_PROBE)
