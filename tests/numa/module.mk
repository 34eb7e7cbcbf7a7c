# SPDX-License-Identifier: Apache-2.0
# A build with a sanitizer is too large for the virtual machine.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/numa
CHECK_DEPS += $(ENGRAMD) $(SYNTH)
endif
