# SPDX-License-Identifier: Apache-2.0
# Everything but main.c is an archive, so that tests can link it.
SIDECAR_SRC := $(filter-out sidecar/main.c,$(wildcard sidecar/*.c))
LIBSIDECAR := $B/lib/libengramd.a
$(LIBSIDECAR): $(call objs,$(SIDECAR_SRC))
ALL += $(LIBSIDECAR)
SIDECAR_LIBS = $(LIBSIDECAR) $(LIBKERNELS) $(LIBSHM)
SIDECAR_LDLIBS = $(call pkg_libs,$(DEPPKGS)) -lm

ENGRAMD := $B/bin/engramd
ifneq ($(wildcard sidecar/main.c),)
$(ENGRAMD): $B/obj/sidecar/main.o $(SIDECAR_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
ALL += $(ENGRAMD)
endif
