# SPDX-License-Identifier: Apache-2.0
"""The header is longer than is accepted."""
import struct


def make(c):
    def sparse(path):
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", 200 << 20))
            file.truncate(300 << 20)

    c.files[c.first] = sparse
