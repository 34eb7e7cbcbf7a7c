# SPDX-License-Identifier: Apache-2.0
# `make lint`: each tool on what git tracks, or in a tarball on what is there.
TRACKED = $(shell git ls-files 2>/dev/null || find . -path ./build -prune \
	  -o -type f -print | sed 's|^\./||')
LINT_C = $(filter %.c %.h %.cu %.cuh,$(TRACKED))
LINT_SRC = $(filter-out tests/%,$(filter %.c,$(LINT_C)))
# Those that include CUDA's headers.
LINT_CUDA = $(filter clients/cuda/% kernels/cuda/%,$(LINT_SRC))
LINT_SH = $(filter %.sh .ci/run,$(TRACKED))
# AVX sources need their own -m flags.
tidy_flags = $(if $(findstring _avx2,$(1)),-mavx2 -mf16c -mbmi2) \
	     $(if $(findstring _avx512,$(1)),-mavx512f -mavx512bw -mavx512dq \
		-mavx512vl -mavx2 -mbmi2)

.PHONY: lint lint-run lint-format lint-cppcheck lint-tidy lint-sh lint-man \
	lint-exports
lint:
	@sh config/deps.sh build test lint
	$(Q)$(MAKE) --no-print-directory lint-run
lint-run: lint-format lint-cppcheck lint-tidy lint-sh lint-man lint-exports
	@echo 'lint: clean'

lint-format:
	$(call say,LINT,clang-format)
	$(Q)clang-format --dry-run -Werror $(LINT_C)
# What is switched off, and why, is in config/cppcheck.txt.  It reads no
# system headers, and takes the lists of sys/queue.h for variables never set.
QUEUE_H = $(firstword $(wildcard /usr/include/*/sys/queue.h \
	  /usr/include/sys/queue.h))
lint-cppcheck:
	$(call say,LINT,cppcheck)
	$(Q)mkdir -p build/cppcheck
	$(Q)cppcheck --quiet --std=c11 -j2 --inline-suppr \
		--cppcheck-build-dir=build/cppcheck \
		--enable=warning,performance,portability --error-exitcode=1 \
		--suppressions-list=config/cppcheck.txt -D_GNU_SOURCE \
		-Ishm -Ikernels -Isidecar -Iclients/c -Iclients/cli \
		-Iclients/cuda -Ikernels/cuda \
		$(addprefix --include=,$(QUEUE_H)) $(LINT_SRC)
# One stamp a file, so that a second lint only looks at what changed.
TIDY_STAMPS = $(patsubst %.c,build/tidy/%.ok,$(if $(HAVE_CUDA),$(LINT_SRC), \
	$(filter-out $(LINT_CUDA),$(LINT_SRC))))
lint-tidy: $$(TIDY_STAMPS)
	$(if $(HAVE_CUDA),,$(call say,SKIP,clang-tidy of the GPU part))
build/tidy/%.ok: %.c .clang-tidy config/tidy.h $(wildcard shm/*.h kernels/*.h kernels/cpu/*.h \
		sidecar/*.h clients/c/*.h clients/cli/*.h clients/cuda/*.h \
		kernels/cuda/*.h)
	$(call say,TIDY,$<)
	$(Q)mkdir -p $(@D)
	$(Q)clang-tidy --quiet $< -- -std=gnu17 $(CPPFLAGS) -Iclients/cli \
		$(if $(filter shm/error.c,$<),,-include config/tidy.h) \
		$(if $(filter $<,$(LINT_CUDA)),$(CUDA_CPPFLAGS) -Ikernels/cuda) \
		$(call tidy_flags,$<) 2>$@.log || { cat $@.log; exit 1; }
	$(Q)touch $@
lint-sh:
	$(call say,LINT,shellcheck)
	$(Q)shellcheck $(LINT_SH)
	$(Q)bash -n config/completion/engramctl.bash
	$(Q)bash -n config/completion/engramd.bash
lint-man:
	$(call say,LINT,mandoc)
	$(Q)mandoc -Tlint -Wwarning config/man/*.[1-8]
# The exported symbols are ABI: a change must show in the list.
lint-exports: $(LIBENGRAM_SO) $(if $(HAVE_CUDA),$(LIBENGRAM_CUDA_SO))
	$(call say,LINT,exports)
	$(Q)set -e; for lib in $^; do \
		case $$lib in \
		*_cuda.so) list=clients/cuda/exports.txt ;; \
		*) list=clients/c/exports.txt ;; \
		esac; \
		nm -D --defined-only --with-symbol-versions "$$lib" | \
			awk '$$2 != "A" {print $$3}' | LC_ALL=C sort | \
			diff -u "$$list" -; \
	done
