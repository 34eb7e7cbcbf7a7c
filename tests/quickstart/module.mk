# SPDX-License-Identifier: Apache-2.0
# `make quickstart` and its client; uses the public API alone.
QUICKSTART_CLIENT := $B/tests/quickstart_client
$(QUICKSTART_CLIENT): $B/obj/tests/quickstart/quickstart_client.o \
		$$(LIBENGRAM_SO)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(LIBENGRAM_SO) \
		-Wl,-rpath,'$$ORIGIN/../lib'
CHECK_DEPS += $(QUICKSTART_CLIENT)
