"""``sargnn bench gpu``: its measurements, in Triton's interpreter on a few nodes, and its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

from sargnn.report.bench import gpu
from sargnn.report.bench.settings import BenchGpuConfig
from tests.backends.blocks import block_of
from tests.in_process import sargnn_here

pytest.importorskip("triton", reason="Triton is not installed")


def once(call: Callable[[], Any], repeats: int) -> float:
    call()
    return 0.5 / repeats


def test_a_page_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric", reason="PyG is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    here, (block, _) = torch.device("cpu"), block_of(7, 7, 12)
    config = BenchGpuConfig(Mock(), [3], [2], 4, 5, ["fp32"], 2, "", "")
    with patch.object(gpu, "_seconds", once), patch.multiple(gpu, _CHECKED_NODES=5, _CHECKED_EDGES=9):
        checks = gpu._checks(here, torch.float64)
        operations = gpu._sums(block, 3, torch.float32, 2)
        for name in ("gat", "gatv2", "dot"):
            operations += gpu._attention(block, name, 2, 4, torch.bfloat16, 2)
        layers = gpu._layers(block, 2, config)
    assert all(row["same_bits"] and max(row["errors"]) < 1e-12 for row in checks)
    about = {"gpu": "a GPU", "dataset": "toy", "nodes": 7, "edges": 12, "copy_bytes_per_s": 1e9, "versions": {"torch": "2"}}
    text = "\n".join(gpu.page({"about": about, "checks": checks, "operations": operations, "layers": layers}))
    assert "| gat, sum | float64 |" in text and "| dot 2 x 4 | bfloat16 | 250.00 ms |" in text
    assert "| sum 3 | float32 |" in text and "torch.sparse 250.00 ms" in text and "| 2 x 4 | 250.0 ms, " in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "words",
    [("bench", "gpu"), ("bench", "table", "device=cuda", "worlds=[1]", "limits=false"), ("train", "device=cuda")],
    ids=str,
)
def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = sargnn_here(tmp_path, *words)
    assert done.returncode == 1 and "CUDA" in done.stderr and "sargnn info" in done.stderr


def test_kernels_have_no_precision_of_products(tmp_path: Path) -> None:
    done = sargnn_here(tmp_path, "bench", "gpu", "precisions=[fp32,mixed]")
    assert done.returncode == 1 and all(part in done.stderr for part in ("mixed", "fp32, bf16, fp64")), done.stderr
