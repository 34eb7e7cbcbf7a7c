# SPDX-License-Identifier: Apache-2.0
# libengram against a sidecar of the tests' own; see fake.h.
CLIENT_TEST_SRC := $(wildcard tests/client/test_*.c)
CLIENT_TEST_BIN := $(patsubst tests/client/%.c,$B/tests/%,$(CLIENT_TEST_SRC))

$(CLIENT_TEST_BIN): $B/tests/%: $B/obj/tests/client/%.o \
		$B/obj/tests/client/fake.o $$(LIBCLIENT) $$(LIBKERNELS) \
		$$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(CLIENT_LDFLAGS) -o $@ $^ \
		$(LIBENGRAM_LDLIBS) $(call pkg_libs,cmocka)
$B/tests/test_client_faults: $$(INJECT_OBJ)
$B/tests/test_client_faults: CLIENT_LDFLAGS = $(INJECT_LDFLAGS)
CHECK_TESTS += $(CLIENT_TEST_BIN)
CHECK_DEPS += $(CLIENT_TEST_BIN)

FAKE_DAEMON := $B/tests/fake_daemon
$(FAKE_DAEMON): $B/obj/tests/client/fake_daemon.o $B/obj/tests/client/fake.o \
		$$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)

ATTACH_WRITABLE := $B/tests/attach_writable
$(ATTACH_WRITABLE): $B/obj/tests/client/attach_writable.o $(LIBENGRAM_SO)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../lib' -o $@ $< \
		-L$B/lib -lengram
CHECK_PYTEST += tests/client
CHECK_DEPS += $(ENGRAMCTL) $(LIBENGRAM_SO) $(FAKE_DAEMON) $(ATTACH_WRITABLE)
