# SPDX-License-Identifier: Apache-2.0
"""The completions know every command and every option that --help names."""
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
TOP = pathlib.Path(__file__).parent.parent.parent
ENGRAMCTL = BUILD / "bin" / "engramctl"


def help_of(*words):
    return subprocess.run([ENGRAMCTL, *words, "--help"], check=True,
                          capture_output=True, text=True).stdout


def commands():
    text = help_of().split("commands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+) ", text, re.MULTILINE)


@pytest.mark.parametrize("file", ["engramctl.bash", "_engramctl"])
def test_commands_and_options(file):
    text = (TOP / "config/completion" / file).read_text()
    assert commands()
    for command in commands():
        assert re.search(rf"\b{command}\b", text), command
        for option in re.findall(r"^  (--[\w-]+)", help_of(command),
                                 re.MULTILINE):
            assert option in text, f"{command} {option}"


def test_bash_completes():
    """What bash itself offers after `engramctl pr` and `engramctl load --ca`."""
    script = (f"source {TOP}/config/completion/engramctl.bash\n"
              "COMP_WORDS=(engramctl pr) COMP_CWORD=1; _engramctl; "
              "echo ${COMPREPLY[@]}\n"
              "COMP_WORDS=(engramctl load --ca) COMP_CWORD=2; _engramctl; "
              "echo ${COMPREPLY[@]}\n")
    run = subprocess.run(["bash", "-c", script], capture_output=True,
                         text=True, check=True)
    assert run.stdout == "prune\n--cancel-on-interrupt\n"
