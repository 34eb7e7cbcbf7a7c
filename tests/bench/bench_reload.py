#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an engine's steps cost while its table is reloaded: hash and lookups of
two layers as a captured CUDA graph, replayed without end, before any reload
and across ten, each of which is loaded, registered, changed over to and let
go of.  Rows are compared with the CPU's after each change.

Needs a GPU and build/tests/refresh_cuda; no torch.
"""
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import measure

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import engramd  # noqa: E402

RECORD = 264
COLUMNS = 24
LAYERS = 2


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--dir", help="where the checkpoint is written "
                                      "(a temporary directory)")
    result.add_argument("--gib", type=float,
                        help="size of the table (4; with --quick 0.05)")
    result.add_argument("--reloads", type=int, default=10)
    result.add_argument("--tokens", type=int, default=256,
                        help="of a step (256)")
    result.add_argument("--probe",
                        default=str(engramd.BUILD / "tests/refresh_cuda"))
    return result


class Engine:
    def __init__(self, probe, sidecar, tokens):
        self.process = subprocess.Popen(
            [probe, sidecar.socket, "bench", "0", str(tokens)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if "ok " not in line or line.startswith("failed"):
            sys.exit(f"bench_reload.py: {line}")
        return {key: float(value) for key, value in
                (word.split("=") for word in line.split() if "=" in word)}

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def run(self, seconds):
        self.tell("run", int(seconds * 1000))
        return self.read()

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def times(answer, which):
    return {key.removeprefix(f"{which}_"): value
            for key, value in answer.items() if key.startswith(f"{which}_")}


def reload_all(client, args, seconds):
    """Reloads one after another, each once the one before is let go of."""
    for _ in range(args.reloads):
        began = time.monotonic()
        job = client.finish(client.call("reload", table="bench",
                                        force=True)["job"])
        if job["state"] != "done":
            sys.exit(f"bench_reload.py: {job}")
        engramd.until(lambda: len(client.table("bench")["generations"]) == 1,
                      "the generation before is freed")
        seconds.append(time.monotonic() - began)


def across_reloads(engine, sidecar, args):
    seconds = []
    thread = threading.Thread(target=reload_all,
                              args=(sidecar.client(), args, seconds))
    thread.start()
    answers = []
    while thread.is_alive():
        answers.append(engine.run(3))
    thread.join()
    return answers, seconds


def merged(answers, which):
    """Of several runs: the median of medians, the worst of the tails."""
    found = [times(a, which) for a in answers if a[f"{which}_count"]]
    if not found:
        return None
    middle = sorted(f["p500"] for f in found)[len(found) // 2]
    return {"p500": middle, "count": sum(f["count"] for f in found),
            **{key: max(f[key] for f in found)
               for key in ("p900", "p990", "p999")}}


def measure_all(args, work):
    gib = args.gib or (0.05 if args.quick else 4)
    rows = int(gib * 2**30 / (LAYERS * COLUMNS * RECORD))
    checkpoint = engramd.synth(work / "checkpoint", "--engram-vocab-size",
                               str(rows))
    sidecar = engramd.Sidecar(
        work, [{"name": "bench", "checkpoint": str(checkpoint)}],
        log={"level": "info"}, loader={})
    try:
        client = sidecar.client()
        client.have("bench")
        engine = Engine(args.probe, sidecar, args.tokens)
        engine.run(1)
        before = engine.run(3 if not args.quick else 0.3)
        answers, seconds = across_reloads(engine, sidecar, args)
        after = engine.run(3 if not args.quick else 0.3)
        if engine.end():
            sys.exit("bench_reload.py: the engine failed")
        moves = int(sum(a["moves"] for a in answers))
        if moves != args.reloads:
            sys.exit(f"bench_reload.py: {moves} changes of generation")
    finally:
        sidecar.stop()
    return {"gib": gib, "tokens": args.tokens, "reloads": moves,
            "reload_seconds": sorted(seconds),
            "step_us": {
                "before": times(before, "alone"),
                "while_it_is_loaded": merged(answers, "alone"),
                "while_it_is_registered_and_let_go_of":
                    merged(answers, "beside"),
                "after": times(after, "alone")}}


def main():
    args = parser().parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        result = measure_all(args, pathlib.Path(work))
    for name, found in result["step_us"].items():
        if found:
            print(f"{name:40} {found['p500']:8.1f} us (p99 "
                  f"{found['p990']:8.1f})  {int(found['count'])} steps",
                  flush=True)
    measure.write(args, "reload", result)


if __name__ == "__main__":
    main()
