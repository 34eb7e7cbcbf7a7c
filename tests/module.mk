# SPDX-License-Identifier: Apache-2.0
# C tests: tests/unit/test_NAME.c becomes $B/tests/test_NAME; exit 0 passed,
# 77 skipped, anything else failed.  Other test folders have their own
# module.mk.
UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT_BIN := $(patsubst tests/unit/%.c,$B/tests/%,$(UNIT_SRC))
TEST_LIBS = $(SIDECAR_LIBS)
TEST_LDLIBS = $(SIDECAR_LDLIBS) $(call pkg_libs,cmocka)

$(UNIT_BIN): $B/tests/%: $B/obj/tests/unit/%.o $$(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LDLIBS)
# It has a checkpoint written.
$B/tests/test_checkpoint: | $$(SYNTH)
CHECK_TESTS += $(UNIT_BIN)
CHECK_DEPS += $(UNIT_BIN)

include $(wildcard tests/*/module.mk)
