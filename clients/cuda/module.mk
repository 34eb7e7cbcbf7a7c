# SPDX-License-Identifier: Apache-2.0
# libengram_cuda: the CUDA kernels and the client that registers a table.
# The CUDA runtime is linked statically; NCCL and cuBLASLt are looked for when
# they are needed.
CUDA_CLIENT_SRC := $(filter-out clients/cuda/example.c,$(wildcard \
	clients/cuda/*.c))
CUDA_CLIENT_OBJ := $(call objs,$(CUDA_CLIENT_SRC))
LIBENGRAM_CUDA_SO := $B/lib/libengram_cuda.so
LIBENGRAM_CUDA_REAL := $(LIBENGRAM_CUDA_SO).$(VERSION)
LIBENGRAM_CUDA_SONAME := libengram_cuda.so.$(SOVERSION)
LIBENGRAM_CUDA_HEADERS := $(wildcard clients/cuda/engram_cuda*.h) \
	kernels/engram_cuda_kernels.h
LIBENGRAM_CUDA_MAP := clients/cuda/libengram_cuda.map
$(CUDA_CLIENT_OBJ): EXTRA_CFLAGS += $(CUDA_CPPFLAGS) -Ikernels/cuda

ifneq ($(HAVE_CUDA),)
# libengram first: of the CPU kernels and of shm only what it hides is taken
# here.
$(LIBENGRAM_CUDA_REAL): $(LIBENGRAM_CUDA_MAP) $(CUDA_CLIENT_OBJ) \
		$(LIBKERNELS_CUDA) $(LIBENGRAM_SO) $(LIBKERNELS) $(LIBSHM)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(LIBENGRAM_CUDA_SONAME) \
		-Wl,--version-script=$< -Wl,-z,relro,-z,now \
		$(if $(SANFLAGS),,-Wl,-z,defs) -Wl,-rpath,'$$ORIGIN' -o $@ \
		$(CUDA_CLIENT_OBJ) -Wl,--whole-archive $(LIBKERNELS_CUDA) \
		-Wl,--no-whole-archive -L$B/lib -lengram $(LIBKERNELS) $(LIBSHM) \
		$(CUDA_LDLIBS) -lm
$(LIBENGRAM_CUDA_SO): $(LIBENGRAM_CUDA_REAL)
	$(Q)ln -sf $(notdir $<) $(@D)/$(LIBENGRAM_CUDA_SONAME)
	$(Q)ln -sf $(LIBENGRAM_CUDA_SONAME) $@

# A program has a CUDA runtime of its own, shared or static: the library's is
# not for others, and both use the same context of the device.
LIBENGRAM_CUDA_EXAMPLE := $B/bin/engram-cuda-example
$B/obj/clients/cuda/example.o: EXTRA_CFLAGS += $(CUDA_CPPFLAGS)
$(LIBENGRAM_CUDA_EXAMPLE): $B/obj/clients/cuda/example.o $(LIBENGRAM_CUDA_SO)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../lib' -o $@ $< \
		-L$B/lib -lengram_cuda -lengram $(CUDA_LDLIBS)
ALL += $(LIBENGRAM_CUDA_SO) $(LIBENGRAM_CUDA_EXAMPLE)
endif
