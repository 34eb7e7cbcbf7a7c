# SPDX-License-Identifier: Apache-2.0
"""One compressed id never occurs."""


def make(c):
    c.token_map["token_map"] = [i % 9 for i in range(16)]
