# SPDX-License-Identifier: Apache-2.0
"""The version of this package, which is that of the libraries it belongs to."""
__version__ = "0.1.0"

# The control protocol (sidecar/PROTOCOL.md) that this package speaks.
PROTOCOL = (1, 0)
