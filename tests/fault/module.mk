# SPDX-License-Identifier: Apache-2.0
# Faults are planted between our objects and the C library, see inject.h.
# Programs elsewhere that link $(INJECT_OBJ) need $(INJECT_LDFLAGS) too.
INJECT_OBJ := $B/obj/tests/fault/inject.o
INJECT_WRAPS := malloc calloc realloc reallocarray strndup posix_memalign \
		mmap munmap madvise mprotect memfd_create open fstat lstat fstatat \
		statfs fstatfs fchmod fcntl flock ftruncate fallocate link rename \
		unlink opendir readdir getrandom pread socket eventfd \
		connect recvmsg sendmsg poll pthread_create
INJECT_LDFLAGS := $(INJECT_WRAPS:%=-Wl,--wrap=%)

FAULT_SRC := $(wildcard tests/fault/test_*.c)
FAULT_BIN := $(patsubst tests/fault/%.c,$B/tests/%,$(FAULT_SRC))
$(FAULT_BIN): $B/tests/%: $B/obj/tests/fault/%.o $(INJECT_OBJ) $$(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(INJECT_LDFLAGS) $(FAULT_WRAPS:%=-Wl,--wrap=%) \
		-o $@ $^ $(TEST_LDLIBS)
# What comes of a read is changed too.
$B/tests/test_loader_faults: FAULT_WRAPS := preadv io_uring_queue_init \
	io_uring_register_buffers io_uring_submit_and_wait_timeout
CHECK_TESTS += $(FAULT_BIN)
CHECK_DEPS += $(FAULT_BIN)
$B/tests/test_load_faults: FAULT_WRAPS := strdup asprintf scandir read preadv \
	stat mlock mlock2
$B/tests/test_load_faults: | $$(SYNTH)
