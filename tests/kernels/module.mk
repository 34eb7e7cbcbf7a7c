# SPDX-License-Identifier: Apache-2.0
# An interpreter without the sanitizers' run-time cannot load objects that
# need it, so these run in the plain variant.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/kernels
CHECK_DEPS += $(KERNELS_TEST_SO)
endif

$B/tests/test_hash $B/tests/test_hash_refuses: $B/obj/tests/unit/hash_model.o
