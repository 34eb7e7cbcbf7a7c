# SPDX-License-Identifier: Apache-2.0
"""Decode steps one after another, for bench_gather: times of single lookups,
alone, beside a prefill of another handle, and of several processes at once.

    gather_steps.py LIB SOCKET ROWS STEPS SEED PATH

prints "ready", waits for a line, and prints percentiles as JSON.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import threading

HEADS = 24
TOKENS = 32
PREFILL_TOKENS = 8192
BATCH = 1000
DIM = 256


def percentiles(times):
    cut = statistics.quantiles(times, n=1000, method="inclusive")
    return {"steps": len(times), "p50_us": cut[499], "p99_us": cut[989],
            "p99_9_us": cut[998], "max_us": max(times)}


class Prefill:
    """Large lookups on a stream of its own for as long as it is `with`."""

    def __init__(self, client, rows, path, seed):
        import torch

        import ids as id_sets

        self._client, self._path = client, path
        self._stream = torch.cuda.Stream()
        self._sets = id_sets.make_sets("uniform", rows, 16, PREFILL_TOKENS,
                                       HEADS, seed)
        self._out = torch.empty((PREFILL_TOKENS, HEADS, DIM),
                                dtype=torch.bfloat16, device="cuda")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.lookups, self.error = 0, None

    def _run(self):
        import torch

        try:
            with torch.cuda.stream(self._stream):
                ends = []
                while not self._stop.is_set():
                    self._client.lookup(self._path,
                                        self._sets[self.lookups % 16],
                                        self._out)
                    self.lookups += 1
                    ends.append(torch.cuda.Event())
                    ends[-1].record()
                    if len(ends) > 3:  # it never runs out
                        ends.pop(0).synchronize()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._stream.synchronize()
        if self.error:
            raise self.error


def measure_steps(client, rows, steps, seed, path):
    """Microseconds of each, all with new ids."""
    import torch

    import ids as id_sets

    out = torch.empty((TOKENS, HEADS, DIM), dtype=torch.bfloat16,
                      device="cuda")
    times = []
    while len(times) < steps:
        seed += 1
        sets = id_sets.make_sets("uniform", rows, BATCH, TOKENS, HEADS, seed)
        events = [torch.cuda.Event(enable_timing=True)
                  for _ in range(2 * BATCH)]
        torch.cuda.current_stream().synchronize()
        for i, ids in enumerate(sets):
            events[2 * i].record()
            client.lookup(path, ids, out)
            events[2 * i + 1].record()
        torch.cuda.current_stream().synchronize()
        times += [events[2 * i].elapsed_time(events[2 * i + 1]) * 1e3
                  for i in range(BATCH)]
    return times


def several(count, library, socket, rows, steps, seed, path):
    """Percentiles of each of so many processes at once."""
    workers = [subprocess.Popen(
        [sys.executable, str(pathlib.Path(__file__).resolve()), library,
         str(socket), str(rows), str(steps), str(seed + 1000 * i), str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(count)]
    try:
        for worker in workers:
            line = worker.stdout.readline()
            if line != "ready\n":
                raise RuntimeError(f"gather_steps.py: {line!r}")
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [json.loads(worker.communicate()[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


class Busy:
    """A process that computes on each of these cores, while it is `with`."""

    def __init__(self, cores):
        self._processes = [subprocess.Popen(
            [sys.executable, "-c",
             f"import os\nos.sched_setaffinity(0, [{core}])\n"
             "while os.getppid() != 1: sum(range(100000))"])
            for core in cores]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()


def main():
    import torch

    import gather_client

    library, socket, rows, steps, seed, path = sys.argv[1:]
    with gather_client.Client(library, socket, measuring=False) as client:
        measure_steps(client, int(rows), BATCH, int(seed) + 1, int(path))
        torch.cuda.synchronize()
        print("ready", flush=True)
        sys.stdin.readline()
        times = measure_steps(client, int(rows), int(steps), int(seed) + 100,
                              int(path))
        print(json.dumps(percentiles(times)))


if __name__ == "__main__":
    main()
