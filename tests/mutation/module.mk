# SPDX-License-Identifier: Apache-2.0
# The tests that must notice a fault in the kernels, the golden files first.
MUTATION_UNIT := geometry hash hash_mod rows
MUTATION_UNIT := $(foreach t,$(MUTATION_UNIT),$(basename \
		   $(notdir $(wildcard tests/unit/test_$t.c))))
MUTATION_GOLDEN_OBJ := $(call objs,$(GOLDEN_SRC))
MUTATION_MODEL_OBJ := $B/obj/tests/unit/hash_model.o
MUTATION_UNIT_OBJ := $(MUTATION_UNIT:%=$B/obj/tests/unit/%.o)
MUTATION_ARGS = golden=$(subst $(mutation_space),$(mutation_comma),$(strip \
		  $(MUTATION_GOLDEN_OBJ))) \
		$(foreach t,$(MUTATION_UNIT),$t=$B/obj/tests/unit/$t.o$(mutation_comma)$(MUTATION_MODEL_OBJ))
mutation_comma := ,
mutation_space := $(subst ,, )

# One file that runs it, as the test runner wants.
CHECK_MUTATION := $B/tests/check_mutation
$(CHECK_MUTATION): tests/mutation/module.mk tests/mutation/run.py \
		$(MUTATION_GOLDEN_OBJ) $(MUTATION_UNIT_OBJ) \
		$(MUTATION_MODEL_OBJ) $(LIBKERNELS) $(LIBSHM)
	$(Q)mkdir -p $(@D)
	$(Q)printf '%s\n' '#!/bin/sh' \
		"exec $(PYTHON) tests/mutation/run.py --build $B \\" \
		"--cc '$(CC) $(BASE_CFLAGS) -D_GNU_SOURCE -Ishm -Ikernels -O1' \\" \
		"--cc-for '*_avx2.c=$(AVX2_CFLAGS)' \\" \
		"--cc-for '*_avx512.c=$(AVX512_CFLAGS)' \\" \
		"--libs '$(call pkg_libs,cmocka jansson) -lm' \\" \
		'$(MUTATION_ARGS)' >$@
	$(Q)chmod +x $@

.PHONY: check-mutation
check-mutation: $(CHECK_MUTATION)
	$(Q)$(CHECK_MUTATION)

# The faults are the same with sanitizers and take longer to build.
ifeq ($(SANITIZE)$(COVERAGE),)
CHECK_TESTS += $(CHECK_MUTATION)
CHECK_DEPS += $(CHECK_MUTATION)
endif
