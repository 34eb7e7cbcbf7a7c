# SPDX-License-Identifier: Apache-2.0
include config/lint.mk config/install.mk
