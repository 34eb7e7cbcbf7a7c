# SPDX-License-Identifier: Apache-2.0
"""Where tables come to lie on a machine with two nodes of memory: a virtual
one, whose first process is tests/numa/init.  Its sysctls are its own.

Needs qemu-system-x86_64, a busybox that is linked statically, and a kernel to
boot: $ENGRAM_TEST_KERNEL, or this machine's in /boot.
"""
import gzip
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("ENGRAM_BUILD", "build")
PROGRAMS = ["engramd", "engramctl", "engram-synth"]
# Of the whole machine, whose processors are simulated: KVM inside of a virtual
# machine hangs too often, and Linux 6.12 panics where each is a thread.
DEADLINE = 300
HUGE = 2 << 20

WAYS = {
    "bind_0": {"numa": "bind", "numa_nodes": [0]},
    "bind_1": {"numa": "bind", "numa_nodes": [1]},
    "bind_1_small": {"numa": "bind", "numa_nodes": [1], "huge_pages": "off"},
    "bind_1_memfd": {"numa": "bind", "numa_nodes": [1], "backing": "memfd"},
    "both": {"numa": "interleave", "huge_pages": "require"},
    "both_small": {"numa": "interleave", "huge_pages": "off"},
    "both_memfd": {"numa": "interleave", "backing": "memfd",
                   "huge_pages": "require"},
    "copies": {"numa": "replicate"},
    "copies_memfd": {"numa": "replicate", "backing": "memfd"},
    "local": {},
    "no_node": {"numa": "bind", "numa_nodes": [2]},
    # The last one: there is no way back.
    "no_io_uring": {},
}


def kernel():
    """A kernel that this user can read, or None."""
    given = os.environ.get("ENGRAM_TEST_KERNEL")
    found = [given] if given else \
        [f"/boot/vmlinuz-{platform.release()}",
         *sorted(map(str, pathlib.Path("/boot").glob("vmlinuz*")))]
    return next((x for x in found if os.access(x, os.R_OK)), None)


def busybox():
    path = shutil.which("busybox")
    if not path:
        return None
    linked = subprocess.run(["ldd", path], capture_output=True, text=True,
                            check=False)
    return None if linked.returncode == 0 else path


def libraries(program):
    """The shared objects that it is linked with, and the loader."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True,
                          check=True)
    return re.findall(r"(/\S+) \(0x", done.stdout)


def put(root, path, name=None):
    target = root / (name or path.lstrip("/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def initramfs(root):
    for folder in "proc", "sys", "dev", "bin":
        (root / folder).mkdir(parents=True)
    put(root, busybox(), "bin/busybox")
    for name in ("sh", "mount", "mkdir", "cat", "sleep", "tr", "poweroff"):
        (root / "bin" / name).symlink_to("busybox")
    for name in PROGRAMS:
        put(root, BUILD / "bin" / name, f"bin/{name}")
        for library in libraries(BUILD / "bin" / name):
            put(root, library)
    put(root, ROOT / "tests/numa/init", "init")
    (root / "init").chmod(0o755)
    (root / "ways").write_text("".join(
        f"{name} {json.dumps(memory)}\n" for name, memory in WAYS.items()))
    names = "\n".join(str(x.relative_to(root)) for x in root.rglob("*"))
    archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"],
                             input=names.encode(), cwd=root, check=True,
                             stdout=subprocess.PIPE).stdout
    image = root.with_suffix(".img")
    image.write_bytes(gzip.compress(archive, 1))
    return image


def boot(image):
    half = "size=1G"
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none",
        "-serial", "stdio", "-accel", "tcg,thread=single",
        "-cpu", "qemu64", "-smp", "2", "-m", "2G",
        "-object", f"memory-backend-ram,id=a,{half}",
        "-object", f"memory-backend-ram,id=b,{half}",
        "-numa", "node,nodeid=0,cpus=0,memdev=a",
        "-numa", "node,nodeid=1,cpus=1,memdev=b",
        "-kernel", kernel(), "-initrd", image,
        "-append", "console=ttyS0 quiet panic=-1 no_timer_check"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=DEADLINE, check=False,
                          errors="replace")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """What engramd said of the table, by the name of the way."""
    for what, found in (("qemu-system-x86_64",
                         shutil.which("qemu-system-x86_64")),
                        ("a busybox that is linked statically", busybox()),
                        ("cpio", shutil.which("cpio")),
                        ("a kernel in /boot or $ENGRAM_TEST_KERNEL",
                         kernel())):
        if not found:
            pytest.skip(f"two nodes need {what}")
    done = boot(initramfs(tmp_path_factory.mktemp("vm") / "root"))
    out = done.stdout.replace("\r", "")
    assert "\nEND" in out, out + done.stderr
    assert "NODES 0-1" in out, out
    found = {name: json.loads(text)["tables"][0] for name, text in
             re.findall(r"^TABLE (\w+) (\{.*\})$", out, re.M)}
    if "\nDENIED io_uring\n" not in out:
        del found["no_io_uring"]
    return found


def nodes(layer):
    """Bytes by node; all of the layer is somewhere."""
    found = {x["node"]: x["bytes"] for x in layer["nodes"]}
    assert sum(found.values()) == layer["bytes"]
    return found


@pytest.mark.parametrize("way", [x for x in WAYS if x.startswith("bind")])
def test_bind(tables, way):
    wanted = WAYS[way]["numa_nodes"]
    assert tables[way]["state"] == "ready"
    for layer in tables[way]["layers"]:
        assert list(nodes(layer)) == wanted
        if way != "bind_1_small":
            assert layer["huge_bytes"] == layer["bytes"]


@pytest.mark.parametrize("way", [x for x in WAYS if x.startswith("both")])
def test_interleave(tables, way):
    """Evenly, also where pages are huge: by the first small page of each, all
    would be on one node."""
    assert tables[way]["state"] == "ready"
    for layer in tables[way]["layers"]:
        found = nodes(layer)
        assert sorted(found) == [0, 1]
        assert abs(found[0] - found[1]) <= 2 * HUGE
        if way != "both_small":
            assert layer["huge_bytes"] == layer["bytes"]


@pytest.mark.parametrize("way", [x for x in WAYS if x.startswith("copies")])
def test_replicate(tables, way):
    """Each copy wholly on its node, and of the same bytes as ever."""
    table = tables[way]
    assert table["state"] == "ready"
    assert table["content_id"] == tables["local"]["content_id"]
    for layer in table["layers"]:
        assert [copy["node"] for copy in layer["copies"]] == [0, 1]
        for copy in layer["copies"]:
            assert nodes(copy) == {copy["node"]: layer["bytes"]}
            assert copy["huge_bytes"] == layer["bytes"]


def test_local(tables):
    """On the node that engramd runs on, which is one."""
    assert tables["local"]["state"] == "ready"
    found = [nodes(layer) for layer in tables["local"]["layers"]]
    assert len(found[0]) == 1 and found[0].keys() == found[1].keys()


def test_no_such_node(tables):
    error = tables["no_node"]["error"]
    assert "node 2 of memory.numa_nodes is not there" in error["message"]
    assert error["data"]["fix"] == "nodes with memory and cores are 0-1"


def test_report_15_io_uring_disabled(tables):
    """By the sysctl: read by threads instead, and the same bytes."""
    if "no_io_uring" not in tables:
        pytest.skip("that kernel has no kernel.io_uring_disabled (Linux 6.6)")
    usual, denied = tables["local"], tables["no_io_uring"]
    assert usual["loader"]["engine"] == "io_uring"
    assert denied["loader"]["engine"] == "preadv"
    assert "io_uring: Operation not permitted" in denied["loader"]["reason"]
    assert denied["content_id"] == usual["content_id"]
