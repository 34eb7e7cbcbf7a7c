# SPDX-License-Identifier: Apache-2.0
CONFIG_PROBE := $B/tests/config_probe
$(CONFIG_PROBE): $B/obj/tests/config/probe.o $$(SIDECAR_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
CHECK_DEPS += $(CONFIG_PROBE)
CHECK_PYTEST += tests/config
