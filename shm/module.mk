# SPDX-License-Identifier: Apache-2.0
SHM_SRC := $(wildcard shm/*.c)
LIBSHM := $B/lib/libengram_shm.a
$(LIBSHM): $(call objs,$(SHM_SRC))
ALL += $(LIBSHM)
