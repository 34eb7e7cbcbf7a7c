# SPDX-License-Identifier: Apache-2.0
# The benchmarks need a GPU, torch and Triton (run_all.sh); here only their
# parts that do not are tested.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_PYTEST += tests/bench
CHECK_DEPS += $(KERNELS_TEST_SO)
endif
