# SPDX-License-Identifier: Apache-2.0
# A reader of rows that checks them all, and the long run that uses it.
ROW_READER := $B/tests/row_reader
$(ROW_READER): $B/obj/tests/soak/row_reader.o $(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
CHECK_DEPS += $(ROW_READER)
CHECK_PYTEST += tests/soak

# The long form: make soak SECONDS=3600
.PHONY: soak
soak: all $(ROW_READER)
	$(Q)$(RUN_ENV) env ENGRAM_BUILD=$B $(PYTHON) tests/soak/soak.py \
		--seconds $(or $(SECONDS),600)
