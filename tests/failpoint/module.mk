# SPDX-License-Identifier: Apache-2.0
# engramd and row_reader with the points of shm/failpoint.h: what includes it
# is compiled a second time, and stands in for the archives' own members.
FAILPOINT_SRC := $(shell grep -l '"failpoint\.h"' shm/*.c sidecar/*.c \
		 clients/c/*.c)
FAILPOINT_OBJ := $B/obj/failpoint/tests/failpoint/failpoint.o
failpoint_objs = $(patsubst %.c,$B/obj/failpoint/%.o,$(filter $(1), \
		 $(FAILPOINT_SRC))) $(FAILPOINT_OBJ)
$B/obj/failpoint/%.o: %.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -DENGRAM_FAILPOINTS $(BASE_CFLAGS) $(CFLAGS) \
		$(EXTRA_CFLAGS) -MMD -MP -c -o $@ $<

FAILPOINT_BIN := $(addprefix $B/failpoint/,engramd row_reader list)
$B/failpoint/engramd: $B/obj/sidecar/main.o \
		$(call failpoint_objs,shm/% sidecar/%) $(SIDECAR_LIBS)
$B/failpoint/row_reader: $B/obj/tests/soak/row_reader.o \
		$B/obj/tests/soak/reader.o \
		$(call failpoint_objs,shm/% clients/c/%) $(LIBCLIENT) \
		$$(LIBKERNELS) $$(LIBSHM)
$B/failpoint/list: $B/obj/tests/failpoint/list.o
$(FAILPOINT_BIN):
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
CHECK_PYTEST += tests/failpoint
CHECK_DEPS += $(FAILPOINT_BIN)
