"""``python -m benchmarks.kernels`` on a small graph: results are whole; its timings are no test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.in_process import benchmark_here as run
from tests.processes import ROOT, run_command


@pytest.mark.long
def test_a_table_a_file_and_a_plot(tmp_path: Path) -> None:
    words = ["dataset.scale=0.001", "widths=[8,20]", "repeats=3", "threads=1"]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = run_command([sys.executable, "-m", "benchmarks.kernels", *words], tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    found = json.loads((tmp_path / "bench" / "kernels.json").read_text())
    assert [(row["operation"], row["width"]) for row in found["rows"]] == [
        ("sum", 8), ("sum", 20), ("mean", 8), ("mean", 20),
    ]  # fmt: skip
    for row in found["rows"]:
        for column in ("stock", "stock_fold", "fused", "fused_fresh"):
            low, high = row[column]["quartiles_s"]
            assert 0 < low <= row[column]["median_s"] <= high
        assert row["speedup"] == row["stock"]["median_s"] / row["fused"]["median_s"]
    assert [(row["operation"], row["width"]) for row in found["weighted"]] == [("weighted", 8), ("weighted", 20)]
    for row in found["weighted"]:
        assert all(row[column]["median_s"] > 0 for column in ("sum", "weighted", "stock")) and row["ratio"] > 0
        assert row["speedup"] == row["stock"]["median_s"] / row["weighted"]["median_s"]
    assert "weighted / sum" in done.stdout
    assert [(row["operation"], row["width"]) for row in found["norms"]] == [("norm", 8), ("norm", 20)]
    for row in found["norms"]:
        assert all(row[column]["median_s"] > 0 for column in ("batch", "layer", "batch_torch", "layer_torch"))
        assert row["layer_ratio"] > 0
        assert row["layer_speedup"] == row["layer_torch"]["median_s"] / row["layer"]["median_s"]
    assert "layer / batch" in done.stdout
    assert found["about"]["edges"] > 100_000 and found["about"]["cores"] >= 1 and found["about"]["threads"] == 1
    assert (tmp_path / "bench" / "kernels.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_answered(tmp_path: Path) -> None:
    done = run(tmp_path, "kernels", "kernel")
    assert done.returncode == 1 and "kernel" in done.stderr and "Traceback" not in done.stderr
    done = run(tmp_path, "kernels", "widths=[0]")
    assert done.returncode == 1 and "widths" in done.stderr and "Traceback" not in done.stderr
    done = run(tmp_path, "kernels", "widts=[8]")
    assert done.returncode == 1 and "widths" in done.stderr and "Traceback" not in done.stderr
    for name in ("kernels", "plan", "network"):
        done = run(tmp_path, name, "--help")
        assert done.returncode == 0 and f"python -m benchmarks.{name}" in done.stdout, done.stderr
        assert max(len(x) for x in done.stdout.splitlines()) <= 80 and "sargnn bench" not in done.stdout
