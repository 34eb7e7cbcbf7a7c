# SPDX-License-Identifier: Apache-2.0
"""The example that plots rates, and the code of the documentation."""
import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import engram_client
from python_setting import BUILD, DIM, ROOT

PYTHON = ROOT / "clients" / "python"
EXAMPLE = PYTHON / "examples" / "plot_rates.py"


def test_rates(sidecar, tmp_path):
    """What engramctl prints becomes curves; drawn where matplotlib is."""
    sys.path.insert(0, str(EXAMPLE.parent))
    import plot_rates

    class Args:
        engramctl = BUILD / "bin/engramctl"
        table, socket, seconds = "demo", str(sidecar.socket), 0.01

    if not Args.engramctl.exists():
        pytest.skip("engramctl is not built")
    result = plot_rates.measure(Args)
    found = plot_rates.series(result)
    for kind in ("uniform", "zipf"):
        for threads in (0, 1):
            points = found[kind, threads]
            assert len(points) == len(plot_rates.ROWS)
            assert all(rate > 0 for _, rate in points)
    pytest.importorskip("matplotlib")
    saved, out = tmp_path / "rates.json", tmp_path / "rates.svg"
    saved.write_text(json.dumps(result))
    subprocess.run([sys.executable, EXAMPLE, "--from", saved, "--out", out],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert "uniform ids" in out.read_text() or out.stat().st_size > 10000


def blocks(path):
    """Python of a page, each with its line."""
    text = path.read_text()
    for found in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        yield text[:found.start()].count("\n") + 2, found[1]


PAGES = sorted([*PYTHON.glob("docs/*.md"), PYTHON / "README.md"])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_python(path):
    """Every block compiles, and names only what there is."""
    for line, code in blocks(path):
        compile(code, f"{path.name}:{line}", "exec",
                flags=0x2000)  # top-level await: PyCF_ALLOW_TOP_LEVEL_AWAIT
        for name in re.findall(r"engram_client\.(\w+)", code):
            assert hasattr(engram_client, name) or importlib.util.find_spec(
                f"engram_client.{name}"), f"{path.name}:{line}: {name}"
        for owner, kind in (("client", engram_client.Client),
                            ("table", engram_client.Table),
                            ("gather", engram_client.Gather)):
            for name in re.findall(rf"\b{owner}\.(\w+)\(", code):
                assert hasattr(kind, name), f"{path.name}:{line}: {name}"


def test_links_of_the_pages_lead_somewhere():
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)",
                                 path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_quick_start(sidecar, monkeypatch):
    """The first page's code, on the table of the tests."""
    page = PYTHON / "docs" / "quick-start.md"
    code = [block for _, block in blocks(page)]
    names = {"tokens": np.arange(10, dtype=np.int32)}
    monkeypatch.setenv("ENGRAMD_SOCKET", str(sidecar.socket))
    for block in code[:2]:
        exec(block.replace("deepseek-v4.1-flash", "demo")
             .replace("layer=1", "layer=3"), names)
    assert names["rows"].shape == (10, names["table"].local_heads, DIM)
    names["table"].detach()
    names["client"].close()
