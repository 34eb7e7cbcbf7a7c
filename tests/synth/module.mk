# SPDX-License-Identifier: Apache-2.0
# engram-synth, the maker of synthetic checkpoints.
SYNTH_SRC := $(wildcard tests/synth/*.c)
SYNTH := $B/bin/engram-synth
$(SYNTH): $(call objs,$(SYNTH_SRC)) $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(call pkg_libs,jansson libxxhash) -lm
ALL += $(SYNTH)
override CPPFLAGS += -Itests/synth
