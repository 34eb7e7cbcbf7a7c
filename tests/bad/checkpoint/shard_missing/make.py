# SPDX-License-Identifier: Apache-2.0
"""The index names a file that is not there."""


def make(c):
    c.files[c.first] = None
