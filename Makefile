# SPDX-License-Identifier: Apache-2.0
#
#   make               build everything into build/
#   make quickstart    the main job, on a small synthetic checkpoint
#   make check         all tests
#   make help          the rest
#
# Variants have a build directory of their own:
#   make check SANITIZE=address      ASan and UBSan    build/asan
#   make check SANITIZE=thread       TSan              build/tsan
#   make check COVERAGE=1            gcov              build/cov

MAKEFLAGS += --no-builtin-rules
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDEXPANSION:
.DEFAULT_GOAL := all

VERSION := 0.1.0
SOVERSION := 0

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
SYSCONFDIR ?= /etc

PYTHON ?= /usr/bin/python3
PKG_CONFIG ?= pkg-config
SANITIZE ?=
COVERAGE ?=
V ?=

ifeq ($(SANITIZE),address)
B := build/asan
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all \
	    -fno-omit-frame-pointer
else ifeq ($(SANITIZE),thread)
B := build/tsan
SANFLAGS := -fsanitize=thread -fno-omit-frame-pointer
else ifneq ($(SANITIZE),)
$(error SANITIZE=$(SANITIZE): use address or thread)
else ifneq ($(COVERAGE),)
B := build/cov
SANFLAGS := --coverage -fprofile-update=atomic
else
B := build
SANFLAGS :=
endif

OPT := $(if $(COVERAGE),-O0,-O2)
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes \
	-Wmissing-prototypes -Wold-style-definition -Wpointer-arith \
	-Wwrite-strings -Wvla -Wformat=2 -Wundef -Wno-format-nonliteral
DEPPKGS := liburing jansson libevent_core libevent_pthreads libxxhash \
	   libsystemd
CPPFLAGS += -D_GNU_SOURCE -DENGRAM_VERSION_STRING='"$(VERSION)"' \
	    -Ishm -Ikernels -Isidecar -Iclients/c
CFLAGS ?= -g $(OPT)
# Contraction off: every CPU backend must give the same bits.
BASE_CFLAGS := -std=gnu17 -fPIC -fvisibility=hidden -ffp-contract=off \
	       -pthread $(WARN) $(SANFLAGS)
LDFLAGS += -pthread $(SANFLAGS)

Q := $(if $(V),,@)
say = @printf '  %-7s %s\n' '$(1)' '$(2)'

pkg_cflags = $(shell $(PKG_CONFIG) --cflags $(1) 2>/dev/null)
pkg_libs = $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null)

# Modules add to these.
ALL :=
CHECK_TESTS :=   # executables that tests/run runs
CHECK_PYTEST :=  # folders or files for pytest
CHECK_DEPS :=    # what the tests need built
CLEAN_HINT :=

# An object list for sources of a module: $(call objs,a.c b.c)
objs = $(patsubst %.c,$B/obj/%.o,$(1))

include shm/module.mk
include kernels/module.mk
include sidecar/module.mk
include clients/module.mk
include tests/module.mk
include config/module.mk

.PHONY: all
all: $$(ALL)

$B/obj/%.o: %.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(BASE_CFLAGS) $(CFLAGS) $(EXTRA_CFLAGS) \
		-MMD -MP -c -o $@ $<

%.a:
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

-include $(shell find $B/obj -name '*.d' 2>/dev/null)

.PHONY: clean
clean:
	rm -rf build
