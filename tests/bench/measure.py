# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: options, the description of the machine, timing
by events, the result file."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Long enough for the CPU to put a round of launches behind it: what is timed
# then runs from a full queue, without the gaps of the launches.
HEAD_START_CYCLES = 1_000_000


def parser(description, table=True):
    result = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--lib", default=str(ROOT / "build/lib/libengram_cuda.so"),
        help="the library to measure (%(default)s)")
    result.add_argument("--out", help="write the result there, as JSON")
    result.add_argument(
        "--quick", action="store_true",
        help="a smoke run: small table, few repetitions; the figures mean "
             "nothing and plot.py leaves them out")
    result.add_argument("--seed", type=int, default=1,
                        help="of all random input (%(default)s)")
    if table:
        result.add_argument(
            "--dir", default="/dev/shm",
            help="a tmpfs that holds the table, best mounted huge=always "
                 "(%(default)s)")
        result.add_argument(
            "--gib", type=float,
            help="size of the table (60; with --quick 1).  A table below 8 "
                 "GiB mostly measures the TLB, not the kernels")
        result.add_argument("--writable-registration", action="store_true",
                            help="register without the read-only flag")
    return result


def table_gib(args):
    return args.gib or (1 if args.quick else 60)


def require_gpu():
    """torch with its device in use, or an end that says what is missing."""
    try:
        import torch
    except ImportError:
        sys.exit(f"{sys.executable} has no torch: run this with the Python "
                 "that has torch and triton")
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here: this benchmark needs one")
    torch.zeros(1, device="cuda")
    return torch


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _proc_value(path, key):
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def commit():
    """The commit measured: $ENGRAM_COMMIT, for trees that were copied, or
    git's."""
    if os.environ.get("ENGRAM_COMMIT"):
        return os.environ["ENGRAM_COMMIT"]
    head = _output("git", "rev-parse", "HEAD")
    if not head:
        return "unknown"
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return head + ("-dirty" if changed else "")


def machine():
    """What needs neither torch nor a GPU of one's own."""
    memory = _proc_value("/proc/meminfo", "MemTotal").split()[0]
    gpu, _, driver = _output("nvidia-smi", "--query-gpu=name,driver_version",
                             "--format=csv,noheader").partition("\n")[0] \
        .partition(", ")
    return {
        "command": shlex.join([os.path.relpath(sys.argv[0], ROOT)]
                              + sys.argv[1:]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec="seconds"),
        "commit": commit(),
        "cpu": _proc_value("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": platform.release(),
        "gpu": gpu, "driver": driver,
        "python": platform.python_version()}


def environment():
    import torch
    import triton

    import cuda_driver

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        **machine(),
        "gpu": gpu.name, "sms": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "driver_cuda": cuda_driver.driver_version(),
        "cuda": torch.version.cuda, "torch": torch.__version__,
        "triton": triton.__version__}


def sms():
    import torch

    return torch.cuda.get_device_properties(
        torch.cuda.current_device()).multi_processor_count


def give_head_start():
    import torch

    torch.cuda._sleep(HEAD_START_CYCLES)


def interleaved(variants, repetitions, warm_up=2):
    """Microseconds of each variant, {name: [..]}.

    `variants` are {name: function of the number of the round}.  All run once
    a round, in an order that rotates, so that drift hits all alike.
    """
    import torch

    names = list(variants)
    samples = {name: [] for name in names}
    for turn in range(warm_up + repetitions):
        shift = turn % len(names)
        events = []
        give_head_start()
        for name in names[shift:] + names[:shift]:
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            variants[name](turn)
            end.record()
            events.append((name, begin, end))
        torch.cuda.synchronize()
        if turn >= warm_up:
            for name, begin, end in events:
                samples[name].append(begin.elapsed_time(end) * 1e3)
    return samples


def summary(samples, scale=1.0):
    """Of microseconds, each times `scale`."""
    values = sorted(x * scale for x in samples)
    return {"median_us": statistics.median(values), "min_us": values[0],
            "max_us": values[-1], "repetitions": len(values)}


def capture(function):
    """function() as a CUDA graph of torch; it has run once before."""
    import torch

    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def write(args, bench, result):
    result = {"bench": bench, "quick": args.quick,
              "environment": result.get("environment") or environment(),
              **result}
    text = json.dumps(result, indent=1) + "\n"
    if args.out:
        path = pathlib.Path(args.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    if result["environment"]["commit"] == "unknown":
        print("the commit is unknown here: set ENGRAM_COMMIT",
              file=sys.stderr)
