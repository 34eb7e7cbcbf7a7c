# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmarks that need no GPU: the structures for ctypes, the
model of a row, the table, and what is computed from the times."""
import ctypes
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import beside
import engram_ctypes
import gather_steps
import plot
import rows_model
import sidecar
import sparse_checkpoint
import table

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def test_sparse_checkpoint(tmp_path):
    """engramd loads it, and it is as large as it says."""
    rows = sparse_checkpoint.make(tmp_path / "model", 0.02)
    server = sidecar.Sidecar(tmp_path, tmp_path / "model", None, "1g",
                             gather={"threads": 1})
    try:
        server.load()
        layer = server.client.table("bench")["layers"][0]
        assert layer["rows"] == rows
        assert server.client.call("status")["gather"]["threads"] == 1
    finally:
        server.stop()


@pytest.fixture(scope="module")
def kernels():
    path = ROOT / os.environ.get("ENGRAM_BUILD", "build") \
        / "tests/libkernels_test.so"
    if not path.exists():
        pytest.fail(f"{path} is not there: run "
                    "`make build/tests/libkernels_test.so`")
    return ctypes.CDLL(str(path))


def test_model_has_the_bits_of_the_cpu_kernels(kernels):
    """Every code with every scale."""
    code, scale = np.meshgrid(np.arange(256, dtype=np.uint8),
                              np.arange(256, dtype=np.uint8))
    codes = np.repeat(code.reshape(-1, 1), 32, axis=1)
    scales = np.ascontiguousarray(scale.reshape(-1, 1))
    count = len(codes)
    ids = np.arange(count, dtype=np.int32)
    out = np.zeros((count, 32), np.uint16)
    rows = engram_ctypes.Rows(
        codes=codes.ctypes.data, scales=scales.ctypes.data,
        code_stride_bytes=32, scale_stride_bytes=1, row_begin=0,
        row_end=count, dtype=engram_ctypes.FP8_E4M3,
        scale_scheme=engram_ctypes.SCALE_UE8M0, dim=32, block_size=32,
        tensor_scale=1)
    args = engram_ctypes.LookupArgs(
        ids=ids.ctypes.data, ids_token_stride=1, ids_head_stride=1,
        num_tokens=count, local_heads=1, total_heads=1)
    error = engram_ctypes.Error()
    assert kernels.engram_cpu_lookup(
        ctypes.byref(rows), ctypes.byref(args),
        ctypes.c_void_p(out.ctypes.data), ctypes.byref(error)) == 0, \
        error.message
    assert not rows_model.differ(out, rows_model.decode(codes, scales)).any()


def test_any_nan_is_as_good_only_if_asked():
    got = np.array([0x7FC0, 0x3F80], np.uint16)
    want = np.array([0x7FFF, 0x3F80], np.uint16)
    assert rows_model.differ(got, want).tolist() == [True, False]
    assert not rows_model.differ(got, want, any_nan=True).any()


def test_table_has_two_views_of_the_same_bytes(tmp_path):
    with table.Table(tmp_path, 0.01, threads=2, register=False) as made:
        assert not list(tmp_path.iterdir()), "the file is still there"
        flat = bytes(made.data)
        for row in 0, 1, made.rows - 1:
            codes, scales = made.host_rows("packed", [row])
            at = row * table.RECORD
            assert bytes(codes) + bytes(scales) == flat[at:at + table.RECORD]
            codes, scales = made.host_rows("split", [row])
            assert bytes(codes) == flat[row * 256:row * 256 + 256]
            at = made.rows * 256 + row * 8
            assert bytes(scales) == flat[at:at + 8]
        for layout in "packed", "split":
            rows = made.rows_struct(layout)
            last = made.rows - 1
            codes, scales = made.host_rows(layout, [last])
            at = rows.codes + last * rows.code_stride_bytes
            assert ctypes.string_at(at, 256) == bytes(codes)
            at = rows.scales + last * rows.scale_stride_bytes
            assert ctypes.string_at(at, 8) == bytes(scales)


def test_table_is_not_constant(tmp_path):
    with table.Table(tmp_path, 0.1, threads=2, register=False) as made:
        chunks = made.data[:2 * table.FILL_CHUNK].reshape(2, -1)[:, :4096]
        assert not np.array_equal(*chunks)
        assert len(np.unique(chunks)) == 256


def test_table_too_large_is_refused(tmp_path):
    free = os.statvfs(tmp_path)
    gib = free.f_bavail * free.f_frsize / 2**30
    if gib > 500:
        pytest.skip(f"{gib:.0f} GiB free: more than rows have numbers for")
    with pytest.raises(table.TableError, match="GiB free"):
        table.Table(tmp_path, gib + 1, register=False)


@pytest.mark.parametrize("bounds, coverage, inside, mean", [
    ([0, 5, 12, 14, 19, 25], 1.0, 2, 3.5),
    ([0, 12, 18], 0.8, 1, 6),
    ([12, 30], 0.8, 0, math.nan),
    ([0, 30], 1.0, 0, math.nan),
    ([0, 5], 0.0, 0, math.nan)])
def test_overlap(bounds, coverage, inside, mean):
    got = beside.overlap(10, 20, bounds)
    assert got == pytest.approx((coverage, inside, mean), nan_ok=True)


@pytest.mark.parametrize("script", [
    "table.py", "bench_lookup.py", "bench_model.py", "bench_gate.py",
    "plot.py"])
def test_help_needs_no_gpu(script):
    run = subprocess.run([sys.executable, HERE / script, "--help"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "usage:" in run.stdout


ENVIRONMENT = {"gpu": "H", "driver": "1", "torch": "2", "triton": "3",
               "cpu": "C", "cpus": 16, "commit": "abc", "date": "2020-01-01",
               "command": "x", "cuda": "13.0", "sms": 132}


def lookup_result():
    def variants(tokens, names):
        return {name: {"median_us": 10.0 * (i + 1), "min_us": 9.0,
                       "rows_per_s": 24e6 * tokens / (10.0 * (i + 1)),
                       "gb_per_s": 1.5, "blocks": 4, "threads": 256,
                       "sms": 4, "speed_up": 1 / (i + 1)}
                for i, name in enumerate(names)}

    names = ["triton", "split", "packed", "packed_foreground"]
    return {"bench": "lookup", "quick": False, "environment": ENVIRONMENT,
            "table": {"gib": 60.0, "rows": 1, "huge_gib": 60.0},
            "lookup": [{"distribution": kind, "tokens": tokens,
                        "variants": variants(tokens, names)}
                       for kind in ("uniform", "zipf")
                       for tokens in (32, 8192)],
            "grid": [{"tokens": tokens,
                      "variants": variants(tokens, ["1", "8", "default"])}
                     for tokens in (32, 8192)],
            "steps": [{"tokens": 8, **{name: {"median_us": 5.0} for name in
                                       ("hash", "lookups", "one_by_one",
                                        "at_once")},
                       "at_once_speed_up": 1.2}]}


def model_result():
    one = {"slow_down": 1.25, "stolen_us": 1400.0, "lookup_us": 7000.0,
           "lookup_alone_us": 6900.0, "lookups_inside": [16, 17]}
    return {"bench": "model", "quick": False, "environment": ENVIRONMENT,
            "table": {"gib": 60.0, "rows": 1, "huge_gib": 60.0},
            "works": [{"work": work, "alone_us": 20.0,
                       "beside": {name: one for name in
                                  ("triton", "triton_half", "packed_4")}}
                      for work in ("gemm_large", "gemm_decode", "copy")]}


def gate_result():
    one = {"median_us": 3.0, "min_us": 2.9, "bytes_per_s": 4e12,
           "of_copy": 0.93}
    return {"bench": "gate", "quick": False, "environment": ENVIRONMENT,
            "copy": {"bytes_per_s": 4.3e12},
            "gate": [{"tokens": 64, "variants": {"triton": one,
                                                 "ours": one}}]}


def restart_result():
    one = {"ready_s": {"median": 0.0123}}
    return {"bench": "restart", "quick": False, "environment": ENVIRONMENT,
            "sizes": [{"gib": 0.5, "modes": {"trust": one, "load": one}}]}


RESULTS = {"lookup": lookup_result, "model": model_result,
           "gate": gate_result, "restart": restart_result}


@pytest.mark.parametrize("bench", RESULTS)
def test_tables(bench):
    text = plot.TABLES[bench](RESULTS[bench]())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows
    for line in rows:
        assert line.endswith("|")
    expected = {"lookup": "| 8192 | packed | 30 |",
                "model": "1.25x", "gate": "93 %",
                "restart": "| 0.5 | 12 | 12 |"}[bench]
    assert expected in text, text


def test_svg(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for bench, draw in plot.PLOTS.items():
        if bench == "load":
            continue  # test_bench_load.py
        path = tmp_path / f"{bench}.svg"
        draw(RESULTS[bench](), path)
        assert path.read_text().rstrip().endswith("</svg>")


def test_percentiles():
    found = gather_steps.percentiles(list(range(10001)))
    assert found == {"steps": 10001, "p50_us": 5000, "p99_us": 9900,
                     "p99_9_us": 9990, "max_us": 10000}


def test_busy_ends():
    core = min(os.sched_getaffinity(0))
    with gather_steps.Busy([core]) as busy:
        process, = busy._processes  # pylint: disable=protected-access
        assert process.poll() is None
    assert process.poll() is not None
