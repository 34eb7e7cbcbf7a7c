# SPDX-License-Identifier: Apache-2.0
# One test a report from the field: what once went wrong somewhere.
CHECK_PYTEST += tests/reports
