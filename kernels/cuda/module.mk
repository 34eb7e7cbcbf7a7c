# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: C behind kernels/engram_cuda_kernels.h.
CUDA_KERNELS_SRC := $(wildcard kernels/cuda/*.cu)
CUDA_KERNELS_OBJ := $(patsubst %.cu,$B/obj/%.o,$(CUDA_KERNELS_SRC)) \
	$B/obj/kernels/cuda/launch.o
$B/obj/kernels/cuda/launch.o: EXTRA_CFLAGS := $(CUDA_CPPFLAGS)
LIBKERNELS_CUDA := $B/lib/libengram_cuda_kernels.a
ifneq ($(HAVE_CUDA),)
$(LIBKERNELS_CUDA): $(CUDA_KERNELS_OBJ)
ALL += $(LIBKERNELS_CUDA)
endif
