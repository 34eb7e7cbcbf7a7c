# SPDX-License-Identifier: Apache-2.0
CHECKPOINT_PROBE := $B/tests/checkpoint_probe
$(CHECKPOINT_PROBE): $B/obj/tests/checkpoint/probe.o $$(SIDECAR_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
CHECK_DEPS += $(CHECKPOINT_PROBE)
CHECK_PYTEST += tests/checkpoint
