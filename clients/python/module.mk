# SPDX-License-Identifier: Apache-2.0
# `make wheel`: the Python client with libengram, and libengram_cuda where it is
# built, in $B/dist.
PYTHON_SRC := $(shell find clients/python -type f -not -name '*.pyc' \
	      -not -path '*.egg-info/*' -not -path '*/build/*')
PYTHON_LIBS = $(LIBENGRAM_SO) $(if $(HAVE_CUDA),$(LIBENGRAM_CUDA_SO))

.PHONY: wheel
wheel: $B/dist/stamp
	@ls $B/dist/*.whl
$B/dist/stamp: clients/python/make_wheel.sh $(PYTHON_SRC) $$(PYTHON_LIBS)
	$(call say,WHEEL,$(@D))
	$(Q)PYTHON='$(PYTHON)' sh $< $(@D) $(PYTHON_LIBS)
	$(Q)touch $@
