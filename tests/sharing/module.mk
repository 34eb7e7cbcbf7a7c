# SPDX-License-Identifier: Apache-2.0
CHECK_PYTEST += tests/sharing
