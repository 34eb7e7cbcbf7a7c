# SPDX-License-Identifier: Apache-2.0
# libengram for programs: one shared and one static library that hold the
# client, the segment reader and the CPU kernels.  LIBCLIENT, the client alone,
# is for programs of this tree, which link the other archives anyway.
CLIENT_SRC := $(filter-out clients/c/example.c,$(wildcard clients/c/*.c))
CLIENT_OBJ := $(call objs,$(CLIENT_SRC))
LIBCLIENT := $B/lib/libengram_client.a
$(LIBCLIENT): $(CLIENT_OBJ)

LIBENGRAM_OBJ = $(CLIENT_OBJ) $(call objs,$(SHM_SRC) $(KERNELS_SRC))
LIBENGRAM_LDLIBS = $(call pkg_libs,jansson libxxhash) -lm
LIBENGRAM_SO := $B/lib/libengram.so
LIBENGRAM_REAL := $(LIBENGRAM_SO).$(VERSION)
LIBENGRAM_SONAME := libengram.so.$(SOVERSION)
LIBENGRAM_A := $B/lib/libengram.a
LIBENGRAM_HEADERS := clients/c/engram.h clients/c/engram_gather.h \
	shm/engram_error.h \
	shm/engram_status.h kernels/engram_comm.h \
	kernels/engram_geometry.h kernels/engram_kernels.h

$(LIBENGRAM_REAL): clients/c/libengram.map $$(LIBENGRAM_OBJ)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(LIBENGRAM_SONAME) \
		-Wl,--version-script=$< -Wl,-z,relro,-z,now \
		$(if $(SANFLAGS),,-Wl,-z,defs) -o $@ $(filter %.o,$^) \
		$(LIBENGRAM_LDLIBS)
$(LIBENGRAM_SO): $(LIBENGRAM_REAL)
	$(Q)ln -sf $(notdir $<) $(@D)/$(LIBENGRAM_SONAME)
	$(Q)ln -sf $(LIBENGRAM_SONAME) $@

# One object with its internal names hidden, so that they can not clash with
# those of the program.
$B/obj/libengram.o: $$(LIBENGRAM_OBJ)
	$(call say,LD,$@)
	$(Q)$(LD) -r -o $@ $^
	$(Q)objcopy --localize-hidden $@
$(LIBENGRAM_A): $B/obj/libengram.o

LIBENGRAM_EXAMPLE := $B/bin/engram-example
$(LIBENGRAM_EXAMPLE): $B/obj/clients/c/example.o $(LIBENGRAM_SO)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../lib' -o $@ $< \
		-L$B/lib -lengram

ALL += $(LIBCLIENT) $(LIBENGRAM_A) $(LIBENGRAM_SO) $(LIBENGRAM_EXAMPLE)

CLI_SRC := $(wildcard clients/cli/*.c)
ENGRAMCTL := $B/bin/engramctl
$(call objs,$(CLI_SRC)): override CPPFLAGS += -Iclients/cli
$(ENGRAMCTL): $(call objs,$(CLI_SRC)) $(LIBCLIENT) $$(LIBKERNELS) $$(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBENGRAM_LDLIBS)
ALL += $(ENGRAMCTL)
