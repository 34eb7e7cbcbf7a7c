# SPDX-License-Identifier: Apache-2.0
# Faults are planted between our objects and the C library or liburing.
LOADER_FAULTS := $B/tests/test_loader_faults
LOADER_WRAPS := preadv io_uring_submit_and_wait_timeout io_uring_queue_init \
		io_uring_register_buffers pthread_create fallocate malloc \
		calloc posix_memalign
$(LOADER_FAULTS): $B/obj/tests/fault/test_loader_faults.o $$(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(LOADER_WRAPS:%=-Wl,--wrap=%) -o $@ $^ \
		$(TEST_LDLIBS)
CHECK_TESTS += $(LOADER_FAULTS)
CHECK_DEPS += $(LOADER_FAULTS)
