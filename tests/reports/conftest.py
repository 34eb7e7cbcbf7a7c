# SPDX-License-Identifier: Apache-2.0
"""The fixtures of tests/integration."""
import importlib.util
import pathlib
import sys

INTEGRATION = pathlib.Path(__file__).resolve().parents[1] / "integration"
sys.path.insert(0, str(INTEGRATION))
_spec = importlib.util.spec_from_file_location(
    "integration_fixtures", INTEGRATION / "conftest.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

checkpoint = _fixtures.checkpoint
big_checkpoint = _fixtures.big_checkpoint
make = _fixtures.make
