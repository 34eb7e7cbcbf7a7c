# SPDX-License-Identifier: Apache-2.0
# The Python tests of the kernels.  With ASan the interpreter has to have the
# run-time before it loads an object that needs it; TSan's cannot be added to
# an interpreter that way.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/kernels
CHECK_DEPS += $(KERNELS_TEST_SO)
endif

CHECK_KERNELS := $B/tests/check_kernels
$(CHECK_KERNELS): tests/kernels/module.mk $(KERNELS_TEST_SO)
	$(Q)printf '%s\n' '#!/bin/sh' \
		'export ENGRAM_BUILD=$B PYTHONDONTWRITEBYTECODE=1' \
		'export ASAN_OPTIONS=$$ASAN_OPTIONS:detect_leaks=0' \
		'LD_PRELOAD="$(foreach l,asan ubsan,$(shell \
			$(CC) -print-file-name=lib$l.so))" \' \
		'exec $(PYTHON) -m pytest -q -p no:cacheprovider \' \
		'	tests/kernels' >$@
	$(Q)chmod +x $@
ifeq ($(SANITIZE),address)
CHECK_TESTS += $(CHECK_KERNELS)
CHECK_DEPS += $(CHECK_KERNELS)
endif

$B/tests/test_hash $B/tests/test_hash_refuses: $B/obj/tests/unit/hash_model.o
