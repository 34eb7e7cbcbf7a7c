# SPDX-License-Identifier: Apache-2.0
# The token map against the `tokenizers` library, see README.md here.
TOKEN_MAP_PROBE := $B/tests/token_map_probe
$(TOKEN_MAP_PROBE): $B/obj/tests/token_map/probe.o $$(SIDECAR_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)

# One for all variants.  Without a network it is not made, and the tests that
# need it say so.
TOKENIZERS_VENV := build/tokenizers
$(TOKENIZERS_VENV)/ready: tests/token_map/requirements.txt \
		tests/token_map/venv.sh
	$(call say,VENV,$(TOKENIZERS_VENV))
	$(Q)sh tests/token_map/venv.sh $(PYTHON) $(TOKENIZERS_VENV)
CHECK_DEPS += $(TOKEN_MAP_PROBE) $(TOKENIZERS_VENV)/ready
CHECK_PYTEST += tests/token_map

HASH_PROBE := $B/tests/hash_probe
$(HASH_PROBE): $B/obj/tests/token_map/hash_probe.o $$(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
CHECK_DEPS += $(HASH_PROBE)
