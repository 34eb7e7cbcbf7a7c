# SPDX-License-Identifier: Apache-2.0
#
#   make               build everything into build/
#   make quickstart    the main job, on a small synthetic checkpoint
#   make check         all tests
#   make help          the rest
#
# quickstart and check first install the packages that are missing.
#
# Variants have a build directory of their own:
#   make check SANITIZE=address      ASan and UBSan    build/asan
#   make check SANITIZE=thread       TSan              build/tsan
#   make check COVERAGE=1            gcov              build/cov

MAKEFLAGS += --no-builtin-rules
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
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
UNITDIR ?= $(PREFIX)/lib/systemd/system

PYTHON ?= /usr/bin/python3
# The GPU part is built where nvcc is found, with the g++ that it compiles host
# code with; CUDA=0 leaves it out.  Machine code for each of CUDA_ARCHS, PTX of
# the last for newer ones.
CUDA ?= 1
# The usual place, else where the nvcc in PATH is.
ifeq ($(origin CUDA_HOME),undefined)
CUDA_HOME := $(firstword $(patsubst %/bin/nvcc,%,$(wildcard \
	/usr/local/cuda/bin/nvcc) $(realpath $(shell command -v nvcc))) \
	/usr/local/cuda)
endif
NVCC ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) nvcc)
CUDA_ARCHS ?= 80 90 100 120
PKG_CONFIG ?= pkg-config
SANITIZE ?=
COVERAGE ?=
V ?=

ifeq ($(SANITIZE),address)
B := build/asan
# One a word: nvcc takes a comma as the end of an option.
SANFLAGS := -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all \
	    -fno-omit-frame-pointer
else ifeq ($(SANITIZE),thread)
B := build/tsan
# TSan does not know fences, which order stores for other processes here.
SANFLAGS := -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan
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
# A compiler newer than ours may know more warnings: make WERROR=
WERROR ?= -Werror
WARN := -Wall -Wextra $(WERROR) -Wshadow -Wstrict-prototypes \
	-Wmissing-prototypes -Wold-style-definition -Wpointer-arith \
	-Wwrite-strings -Wvla -Wformat=2 -Wundef -Wno-format-nonliteral
DEPPKGS := liburing jansson libevent_core libevent_pthreads libmicrohttpd \
	   libxxhash libsystemd libutf8proc
pkg_cflags = $(shell $(PKG_CONFIG) --cflags $(1) 2>/dev/null)
pkg_libs = $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null)
DEP_CPPFLAGS := $(call pkg_cflags,$(DEPPKGS) cmocka)

comma := ,
# "13.0", when there is an nvcc to use; g++ comes with `make deps` then.
CUDA_RELEASE := $(if $(filter-out 0,$(CUDA)),$(shell $(NVCC) --version \
	2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'))
HAVE_CUDA := $(if $(CUDA_RELEASE),$(shell command -v g++))
CUDA_SAYS := $(if $(filter 0,$(CUDA)),left out: CUDA=0,$(if \
	$(CUDA_RELEASE),$(if $(HAVE_CUDA),CUDA $(CUDA_RELEASE) for \
	$(CUDA_ARCHS),left out: no g++$(comma) which nvcc needs),left out: \
	no nvcc in $(CUDA_HOME)/bin or PATH (CUDA_HOME=)))
CUDA_CPPFLAGS := -isystem $(CUDA_HOME)/include
# The host side of kernels guards statics as C++ does.
CUDA_LDLIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt \
	-Wl,--as-needed -lstdc++
# No fused multiply-add that is not written down: as on the CPU.
CUDA_FLAGS = -std=c++17 -O3 -lineinfo -fmad=false -Xptxas -warn-spills \
	--expt-relaxed-constexpr $(if $(WERROR),-Werror all-warnings) \
	$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a$(comma)code=sm_$a) \
	-gencode arch=compute_$(lastword $(CUDA_ARCHS))$(comma)code=compute_$(lastword \
		$(CUDA_ARCHS)) \
	$(addprefix -Xcompiler ,-fPIC -fvisibility=hidden -pthread -g -Wall \
		-Wextra $(SANFLAGS))

# "override": what a packager gives on the command line comes on top.
override CPPFLAGS += -D_GNU_SOURCE -DENGRAM_VERSION_STRING='"$(VERSION)"' \
	    -Ishm -Ikernels -Isidecar -Iclients/c -Iclients/cuda \
	    $(DEP_CPPFLAGS)
CFLAGS ?= -g $(OPT)
# Contraction off: every CPU backend must give the same bits.
BASE_CFLAGS := -std=gnu17 -fPIC -fvisibility=hidden -ffp-contract=off \
	       -pthread $(WARN) $(SANFLAGS)
override LDFLAGS += -pthread $(SANFLAGS)

# For programs under a sanitizer.  Their exit code is one of no program here;
# detect_stack_use_after_return misaligns 64-byte vectors (GCC bug 110027);
# TSan can not run where the kernel randomises more address bits than it
# knows, so it gets none.
RUN_ENV_address := ASAN_OPTIONS=exitcode=99:detect_leaks=1:strict_string_checks=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99 \
	LSAN_OPTIONS=exitcode=99
RUN_ENV_thread := TSAN_OPTIONS=exitcode=99:halt_on_error=1:second_deadlock_stack=1 \
	$(shell setarch -R true 2>/dev/null && echo setarch -R)
RUN_ENV = $(RUN_ENV_$(SANITIZE))

Q := $(if $(V),,@)
say = @printf '  %-7s %s\n' '$(1)' '$(2)'

# Modules add to these.
ALL :=
CHECK_TESTS :=   # executables that tests/run runs
CHECK_PYTEST :=  # folders or files for pytest
CHECK_DEPS :=    # what the tests need built

# An object list for sources of a module: $(call objs,a.c b.c)
objs = $(patsubst %.c,$B/obj/%.o,$(1))

include shm/module.mk
include kernels/module.mk
include kernels/cuda/module.mk
include sidecar/module.mk
include clients/module.mk
include clients/cuda/module.mk
include clients/python/module.mk
include tests/module.mk
include config/module.mk

.PHONY: all cuda-says
all: $$(ALL)
# Whether the GPU part is built, once a make.
all: cuda-says
cuda-says:
	$(call say,GPU,$(CUDA_SAYS))

# pkg-config is asked while make reads this file, so what needs the packages
# runs in a make of its own once they are there.
.PHONY: deps check check-run quickstart quickstart-run
deps:
	@sh config/deps.sh build test $(if $(CUDA_RELEASE),cuda)
check: deps
	$(Q)$(MAKE) --no-print-directory check-run
quickstart: deps
	$(Q)$(MAKE) --no-print-directory quickstart-run

check-run: all $$(CHECK_DEPS)
	$(Q)$(RUN_ENV) $(PYTHON) tests/check.py --build $B \
		$(addprefix --pytest ,$(CHECK_PYTEST)) $(CHECK_TESTS)
quickstart-run: all $$(CHECK_DEPS)
	$(Q)ENGRAM_BUILD=$B $(PYTHON) tests/quickstart/run.py

$B/obj/%.o: %.cu $B/obj/cuda-flags
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_FLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<
# What kernels were compiled with, written afresh when it changes.
CUDA_STAMP = nvcc $(CUDA_RELEASE) $(NVCC) $(CUDA_FLAGS)
$B/obj/cuda-flags: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(CUDA_STAMP)' | cmp -s - $@ || echo '$(CUDA_STAMP)' >$@

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

-include $(shell sh config/stale.sh $B; find $B/obj -name '*.d' 2>/dev/null)

.PHONY: clean help
clean:
	rm -rf build
help:
	@printf '%s\n' \
	'make                build everything into $B/' \
	'make quickstart     the main job, on a small synthetic checkpoint' \
	'make check          all tests; ends with "N passed, N failed, N skipped"' \
	'make lint           formatting, static analysis, scripts, man pages, exports' \
	'make deps           install what building and testing need (Debian, Ubuntu)' \
	'make wheel          the Python client, with its libraries, in $B/dist' \
	'make install        into $$(DESTDIR)$$(PREFIX); PREFIX=$(PREFIX)' \
	'make uninstall      remove what install put there' \
	'make check-install  install to a scratch directory, build a client, uninstall' \
	'make soak           kill and replace at random, SECONDS=600' \
	'make gpu-tests      the tests that need a GPU, where nvcc is' \
	'make clean          remove build/' \
	'' \
	'CUDA=0              leave the GPU part out' \
	'CUDA_HOME=DIR       the CUDA toolkit ($(CUDA_HOME)); else nvcc in PATH' \
	'CUDA_ARCHS="90 100" compute capabilities to build for ($(CUDA_ARCHS))' \
	'                    now: $(CUDA_SAYS)' \
	'SANITIZE=address    with ASan and UBSan, in build/asan' \
	'SANITIZE=thread     with TSan, in build/tsan' \
	'COVERAGE=1          with gcov, in build/cov' \
	'V=1                 show the commands'
