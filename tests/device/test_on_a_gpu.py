"""What only a GPU shows: `pytest -m gpu` on a machine that has one; skipped elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sargnn.tracking.summary import Summary, read_summary
from tests.in_process import sargnn_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]
GRAPH = ["dataset.num_nodes=600", "epochs=6", "model.hidden=8", "tracking=none", "optim.lr=0.01"]


def run(folder: Path, name: str, *words: str) -> Summary:
    done = sargnn_here(folder, "train", *GRAPH, f"run_dir={name}", *words)
    assert done.returncode == 0, done.stderr
    summary = read_summary(folder / name)
    assert summary is not None
    return summary


@pytest.mark.parametrize("parts", [("world=1",), ("world=3", "processes=1")], ids=str)
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("model", ["sage", "gat", "gcn"])
def test_losses_are_those_of_a_cpu(tmp_path: Path, model: str, precision: str, parts: tuple[str, ...]) -> None:
    words = [f"model={model}", f"precision={precision}", *parts]
    wanted = run(tmp_path, "cpu", *words, "device=cpu").losses
    summary = run(tmp_path, "gpu", *words, "device=cuda")
    assert summary.kernel == "triton" and all(peak > 0 for peak in summary.peak_train_bytes or [0])
    bounds = {"fp64": [1e-8 * abs(loss) for loss in wanted], "fp32": [1e-4 * wanted[0]] * 6, "bf16": [0.02 * wanted[0]] * 6}
    for loss, want, bound in zip(summary.losses, wanted, bounds[precision], strict=True):
        assert abs(loss - want) <= bound
    assert run(tmp_path, "again", *words, "device=cuda").losses == summary.losses  # the same bits


def test_a_run_goes_on_on_the_other_device(tmp_path: Path) -> None:
    words = ["precision=fp64", "model=gat", "checkpoint.every=3"]
    wanted = run(tmp_path, "whole", *words, "device=cpu").losses
    run(tmp_path, "half", *words, "device=cuda", "epochs=3")
    done = sargnn_here(tmp_path, "train", "resume=half", "device=cpu", "epochs=6", "run_dir=rest", "tracking=none")
    assert done.returncode == 0, done.stderr
    rest = read_summary(tmp_path / "rest")
    assert rest is not None and rest.losses == pytest.approx(wanted, rel=1e-8)
    assert sargnn_here(tmp_path, "predict", "run=half").returncode == 0
