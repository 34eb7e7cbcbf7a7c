# SPDX-License-Identifier: Apache-2.0
# `make install` and `make uninstall` work from one list, so that they agree:
# MODE:SOURCE:DESTINATION and LINK->TARGET.
DOCDIR ?= $(PREFIX)/share/doc/engramd
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR ?= $(PREFIX)/share/zsh/site-functions
ENGRAM_INCLUDEDIR = $(INCLUDEDIR)/engram

INSTALL_PREFIXES = $(strip $(PREFIX) $(LIBDIR) $(INCLUDEDIR) $(SBINDIR) \
	$(BINDIR))

install_in = $(foreach f,$(2),$(1):$f:$(3)/$(notdir $f))
INSTALL_FILES = \
	$(call install_in,755,$(ENGRAMD),$(SBINDIR)) \
	$(call install_in,755,$B/bin/engramctl $B/bin/engram-synth,$(BINDIR)) \
	755:$(LIBENGRAM_REAL):$(LIBDIR)/libengram.so.$(VERSION) \
	$(call install_in,644,$(LIBENGRAM_A),$(LIBDIR)) \
	$(call install_in,644,$(LIBENGRAM_HEADERS),$(ENGRAM_INCLUDEDIR)) \
	$(call install_in,644,$B/config/engram.pc,$(LIBDIR)/pkgconfig) \
	$(call install_in,644,$B/config/engramd.service,$(UNITDIR)) \
	$(foreach n,1 3 5 8,$(call install_in,644,$(filter-out %_cuda.3, \
		$(wildcard config/man/*.$n)),$(MANDIR)/man$n)) \
	644:config/completion/engramctl.bash:$(BASHCOMPDIR)/engramctl \
	644:config/completion/engramd.bash:$(BASHCOMPDIR)/engramd \
	$(call install_in,644,$(wildcard config/completion/_*),$(ZSHCOMPDIR)) \
	644:config/README.md:$(DOCDIR)/deployment.md \
	$(call install_in,644,LICENSE README.md sidecar/PROTOCOL.md \
		config/engramd.schema.json clients/c/example.c,$(DOCDIR)) \
	$(call install_in,644,$(wildcard config/examples/*),$(DOCDIR)/examples)
INSTALL_LINKS = \
	$(LIBDIR)/libengram.so.$(SOVERSION):libengram.so.$(VERSION) \
	$(LIBDIR)/libengram.so:libengram.so.$(SOVERSION)
CUDA_INSTALL_FILES = \
	755:$(LIBENGRAM_CUDA_REAL):$(LIBDIR)/libengram_cuda.so.$(VERSION) \
	$(call install_in,644,$(LIBENGRAM_CUDA_HEADERS),$(ENGRAM_INCLUDEDIR)) \
	$(call install_in,644,$B/config/engram_cuda.pc,$(LIBDIR)/pkgconfig) \
	$(call install_in,644,config/man/libengram_cuda.3,$(MANDIR)/man3) \
	644:clients/cuda/example.c:$(DOCDIR)/example_cuda.c
CUDA_INSTALL_LINKS = \
	$(LIBDIR)/$(LIBENGRAM_CUDA_SONAME):libengram_cuda.so.$(VERSION) \
	$(LIBDIR)/libengram_cuda.so:$(LIBENGRAM_CUDA_SONAME)
ifneq ($(HAVE_CUDA),)
INSTALL_FILES += $(CUDA_INSTALL_FILES)
INSTALL_LINKS += $(CUDA_INSTALL_LINKS)
endif
# Directories that are ours alone, innermost first.
INSTALL_DIRS = $(DOCDIR)/examples $(DOCDIR) $(ENGRAM_INCLUDEDIR)

INSTALL_SOURCES = $(foreach e,$(INSTALL_FILES),$(word 2,$(subst :, ,$e)))
# To uninstall; the GPU part too, though this build be without.
INSTALL_DESTS = $(foreach e,$(INSTALL_FILES) $(CUDA_INSTALL_FILES),$(word \
		3,$(subst :, ,$e))) \
		$(foreach e,$(INSTALL_LINKS) $(CUDA_INSTALL_LINKS),$(word \
		1,$(subst :, ,$e)))

.PHONY: install uninstall check-install
install: all $$(INSTALL_SOURCES)
	$(Q)set -e; for entry in $(INSTALL_FILES); do \
		IFS=:; set -- $$entry; unset IFS; \
		install -D -m "$$1" "$$2" "$(DESTDIR)$$3"; \
	done; for entry in $(INSTALL_LINKS); do \
		ln -sf "$${entry#*:}" "$(DESTDIR)$${entry%%:*}"; \
	done
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))

uninstall:
	$(Q)rm -f $(addprefix $(DESTDIR),$(INSTALL_DESTS))
	$(Q)for dir in $(addprefix $(DESTDIR),$(INSTALL_DIRS)); do \
		rmdir "$$dir" 2>/dev/null || true; \
	done
	$(call say,REMOVE,$(DESTDIR)$(PREFIX))

# These name the directories of this installation; they are written afresh
# whenever those differ from the last time.
$B/config/engram.pc: clients/c/engram.pc.in
$B/config/engram_cuda.pc: clients/cuda/engram_cuda.pc.in
$B/config/%.pc: $B/config/dirs
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
		-e 's|@INCLUDEDIR@|$(ENGRAM_INCLUDEDIR)|' \
		-e 's|@VERSION@|$(VERSION)|' $(filter %.in,$^) >$@
$B/config/engramd.service: config/engramd.service.in $B/config/dirs
	$(Q)sed -e 's|@SBINDIR@|$(SBINDIR)|' -e 's|@BINDIR@|$(BINDIR)|' $< >$@
.PHONY: FORCE
$B/config/dirs: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(INSTALL_PREFIXES)' | cmp -s - $@ || \
		echo '$(INSTALL_PREFIXES)' >$@

check-install: deps
	$(Q)MAKE='$(MAKE)' CC='$(CC)' PKG_CONFIG='$(PKG_CONFIG)' \
		HAVE_CUDA='$(HAVE_CUDA)' \
		CUDA_FLAGS='$(CUDA_CPPFLAGS) $(CUDA_LDLIBS)' \
		sh tests/install/check_install.sh
