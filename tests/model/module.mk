# SPDX-License-Identifier: Apache-2.0
# A model of publishing, lending and freeing, for spin; it is the same in all
# builds, and run in one.
CHECK_PYTEST += $(if $(SANFLAGS),,tests/model)
