# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism, with every rank in a thread; see loopback.h.
COMM_TEST := $B/tests/test_gather
LOOPBACK_OBJ := $B/obj/tests/comm/loopback.o
$(call objs,$(wildcard tests/comm/*.c)): override CPPFLAGS += -Itests/golden
$(COMM_TEST): $B/obj/tests/comm/test_gather.o $(LOOPBACK_OBJ) \
		$B/obj/tests/golden/safetensors_case.o $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(call pkg_libs,jansson cmocka) -lm
CHECK_TESTS += $(COMM_TEST)
CHECK_DEPS += $(COMM_TEST)
