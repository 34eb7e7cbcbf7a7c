# SPDX-License-Identifier: Apache-2.0
# Fuzz targets: as tests, each with a driver that replays and mutates its
# corpus; with libFuzzer through `make fuzz FUZZ=config SECONDS=60`.
FUZZ_TARGETS := config safetensors segment server client tokenizer
FUZZ_BIN := $(FUZZ_TARGETS:%=$B/tests/fuzz_%)
FUZZ_LIBS = $(LIBCLIENT) $(SIDECAR_LIBS)
$(call objs,$(wildcard tests/fuzz/*.c)): override CPPFLAGS += -Itests/unit
$(FUZZ_BIN): $B/tests/%: $B/obj/tests/fuzz/%.o $B/obj/tests/fuzz/driver.o \
		$$(FUZZ_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SIDECAR_LDLIBS)
CHECK_TESTS += $(FUZZ_BIN)
CHECK_DEPS += $(FUZZ_BIN)

FUZZ ?= config
SECONDS ?= 60
FUZZ_SRC = $(SHM_SRC) $(KERNELS_SRC) $(SIDECAR_SRC) $(CLIENT_SRC)
.PHONY: fuzz
# Everything is compiled afresh with clang, the instrumentation being all.
fuzz:
	$(Q)mkdir -p build/fuzz/corpus-$(FUZZ)
	$(Q)clang $(CPPFLAGS) -Itests/unit -std=gnu17 -g -O1 -pthread -mavx2 \
		-mavx512f -mavx512bw -mavx512dq -mavx512vl -mbmi2 -mf16c \
		-ffp-contract=off -fsanitize=fuzzer,address,undefined \
		-o build/fuzz/fuzz_$(FUZZ) tests/fuzz/fuzz_$(FUZZ).c \
		$(FUZZ_SRC) $(SIDECAR_LDLIBS)
	build/fuzz/fuzz_$(FUZZ) -max_total_time=$(SECONDS) \
		build/fuzz/corpus-$(FUZZ) tests/fuzz/corpus/$(FUZZ)
