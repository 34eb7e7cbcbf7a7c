# SPDX-License-Identifier: Apache-2.0
"""config/engramd.schema.json agrees with the parser and with the examples."""
import json
import os
import pathlib
import re
import subprocess

import jsonschema
import pytest

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
TOP = pathlib.Path(__file__).parent.parent.parent
SCHEMA = json.loads((TOP / "config/engramd.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLES = sorted((TOP / "config/examples").glob("*.json"))
BAD = sorted((TOP / "tests/bad/config").iterdir())
# What only engramd can tell: other members, names of the host, the length of
# a default path, units out of range.
ENGRAMD_ONLY = {"duplicate_key", "gid_unknown", "hash_cut_outside",
                "hash_min_above_max", "hash_moduli_columns",
                "hash_moduli_layers",
                "hash_multipliers_columns", "hash_multipliers_wrap",
                "hash_pad_outside", "huge_page_power",
                "metrics_address_range", "metrics_path_control",
                "metrics_port_range", "numa_nodes_local", "rows_block_divides",
                "settle_as_long_as_drain",
                "table_twice", "threads_real", "uid_unknown"}


def keys_of(schema):
    keys = set()
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                keys |= {k for k, v in value.items() if v is not False}
            keys |= keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            keys |= keys_of(value)
    return keys


def parser_keys():
    """Every literal key that the parser's sources ask for."""
    text = "".join(path.read_text() for path in
                   sorted((TOP / "sidecar").glob("config*.c")))
    return set(re.findall(r'\(\s*(?:&?v|top),\s*"([a-z_]+)"', text)) | \
        set(re.findall(r'config_section_begin\(\w+, &v, "([a-z_]+)"', text)) | \
        set(re.findall(r'read_list\(&v, "([a-z_]+)"', text))


def test_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_keys_agree():
    assert keys_of(SCHEMA) == parser_keys()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example):
    VALIDATOR.validate(json.loads(example.read_text()))
    run = subprocess.run([BUILD / "tests" / "config_probe", example],
                         capture_output=True, text=True, check=False,
                         timeout=60)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad_config(case):
    """What engramd refuses, the schema refuses where it can."""
    try:
        value = json.loads((case / "engramd.json").read_bytes())
    except ValueError:
        return  # not JSON at all
    assert VALIDATOR.is_valid(value) == (case.name in ENGRAMD_ONLY)


def test_defaults_of_the_schema():
    """"default" in the schema is what engramd does when the key is absent."""
    probe = BUILD / "tests" / "config_probe"
    run = subprocess.run([probe, EXAMPLES[-1].parent / "minimal.json"],
                         capture_output=True, text=True, check=True)
    properties = SCHEMA["properties"]
    assert f"instance: {properties['instance']['default']}\n" in run.stdout
    mode = properties["socket"]["properties"]["mode"]["default"]
    assert f"/run/engramd/default.sock {mode} -\n" in run.stdout
