# SPDX-License-Identifier: Apache-2.0
# A second node of memory to those who look for it.
TWO_NODES := $B/tests/two_nodes.so
$(TWO_NODES): tests/numa/two_nodes.c
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -D_GNU_SOURCE -O1 -Wall -shared -fPIC -o $@ $< -ldl
CHECK_DEPS += $(TWO_NODES)
# A build with a sanitizer is too large for the virtual machine.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/numa
CHECK_DEPS += $(ENGRAMD) $(SYNTH)
endif
