#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an engramd that was killed is away: from the end of the killed
process to a table that can be attached again, for tables of several sizes.

  trust        by the segments' headers; pinned meanwhile
  background   the same, and the records are read back meanwhile
  verify       all records are read back first
  load         nothing is adopted: the checkpoint is read again

Needs no GPU and no torch.  A client that has the table mapped reads on all the
while: tests/integration/test_adopt.py.
"""
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

import measure

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import engramd  # noqa: E402

MODES = {"trust": "trust", "background": "background", "verify": "verify",
         "load": "off"}
RECORD = 264
COLUMNS = 24


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--dir", help="where the checkpoint is written "
                                      "(a temporary directory)")
    result.add_argument("--gib", type=float, nargs="+",
                        help="sizes of the table (0.5 1 2 4; with --quick "
                             "0.02)")
    result.add_argument("--repeat", type=int,
                        help="kills of each (5; with --quick 1)")
    return result


def is_ready(client):
    return client.table("bench")["state"] == "ready"


def wait_settled(client):
    """Ready, and nothing is going on with it any more."""
    engramd.until(lambda: is_ready(client)
                  and client.table("bench")["job"] is None, "table ready")


def kill_and_start(sidecar):
    """Seconds until it answers, and until the table can be attached."""
    sidecar.process.send_signal(signal.SIGKILL)
    sidecar.process.wait()
    sidecar.clients = []
    began = time.monotonic()
    sidecar.start()
    client = sidecar.client()
    answers = time.monotonic() - began
    while not is_ready(client):
        time.sleep(0.0005)
    ready = time.monotonic() - began
    wait_settled(client)
    return answers, ready, client.table("bench")


def one_mode(work, checkpoint, mode, repeat):
    sidecar = engramd.Sidecar(
        work, [{"name": "bench", "checkpoint": str(checkpoint)}],
        memory={"adopt": MODES[mode]}, log={"level": "info"})
    try:
        wait_settled(sidecar.client())
        runs = [kill_and_start(sidecar) for _ in range(repeat)]
    finally:
        sidecar.stop()
    for _, _, table in runs:
        if table["adopted"] != (mode != "load"):
            sys.exit(f"bench_restart.py: {mode}: adopted: {table['adopted']}")
    ready = [run[1] for run in runs]
    return {"answers_s": statistics.median(run[0] for run in runs),
            "ready_s": {"median": statistics.median(ready), "min": min(ready),
                        "max": max(ready), "samples": repeat},
            "locked": runs[-1][2]["locked"]}


def one_size(work, gib, repeat):
    checkpoint = work / "checkpoint"
    rows = int(gib * 2**30 / RECORD / COLUMNS)
    engramd.synth(checkpoint, "--layers", "1", "--engram-vocab-size",
                  str(rows))
    result = {"gib": gib, "modes": {}}
    for mode in MODES:
        one = one_mode(work, checkpoint, mode, repeat)
        result["modes"][mode] = one
        print(f"{gib:6.2f} GiB  {mode:10}  ready after "
              f"{one['ready_s']['median'] * 1e3:8.1f} ms", flush=True)
    shutil.rmtree(checkpoint)
    return result


def main():
    args = parser().parse_args()
    sizes = args.gib or ([0.02] if args.quick else [0.5, 1, 2, 4])
    repeat = args.repeat or (1 if args.quick else 5)
    engramd.DEADLINE = 600
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        result = [one_size(pathlib.Path(work), gib, repeat) for gib in sizes]
    measure.write(args, "restart", {"environment": measure.machine(),
                                    "sizes": result})


if __name__ == "__main__":
    main()
