# SPDX-License-Identifier: Apache-2.0
"""A wheel that holds libraries (`make wheel`) is of this machine's kind, any
other is for all; both are for every Python 3."""
import pathlib

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

LIBRARIES = any(pathlib.Path(__file__).parent.glob("engram_client/lib/*.so.*"))


class Binary(Distribution):
    def has_ext_modules(self):
        return LIBRARIES


class Wheel(bdist_wheel):
    def get_tag(self):
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=Binary, cmdclass={"bdist_wheel": Wheel})
