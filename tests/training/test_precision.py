"""A run that goes on in another precision; what rounded messages are refused with, and what the CPU is said to have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sargnn.cli.compose import compose_verb
from sargnn.config.groups import PRECISIONS
from sargnn.config.run import load, parse, save
from sargnn.errors import ConfigError
from sargnn.native.build import bf16_instructions
from sargnn.tasks.base import Counted, Targets
from sargnn.tracking.provenance import describe_bf16, without_bf16
from sargnn.training.optim import Adam, AdamW
from tests.in_process import sargnn_here
from tests.tasks.made import node_task

SMALL = ("dataset.num_nodes=300", "dataset.mean_degree=6", "model.hidden=16", "tracking=none", "world=2", "eval_every=4")


def test_a_run_goes_on_in_another_precision(tmp_path: Path) -> None:
    """fp32, then bf16, then fp64: the losses go on from where they were, and it is said."""
    stores = f"store_dir={tmp_path}/stores"
    first = sargnn_here(tmp_path, "train", *SMALL, stores, "epochs=4", f"run_dir={tmp_path}/run")
    assert first.returncode == 0, first.stderr
    said = []
    for epochs, precision in ((8, "bf16"), (12, "fp64")):
        done = sargnn_here(tmp_path, "train", f"resume={tmp_path}/run", f"precision={precision}", f"epochs={epochs}")
        assert done.returncode == 0, done.stderr
        said.append(" ".join((done.stdout + done.stderr).split()))
    assert "in bf16 from here on, fp32 before" in said[0] and "in fp64 from here on, bf16 before" in said[1]
    straight = sargnn_here(tmp_path, "train", *SMALL, stores, "epochs=12", f"run_dir={tmp_path}/straight")
    assert straight.returncode == 0
    losses = [json.loads((tmp_path / name / "summary.json").read_text())["losses"] for name in ("run", "straight")]
    assert losses[0][:4] == losses[1][:4] and losses[0] != losses[1]
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) <= 2e-2 * losses[1][0]
    written = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert {np.load(one).dtype for one in written.rglob("param/*.npy")} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("precision=fp64", "comm.wire=bf16"), ("precision=fp64 comm.wire=bf16", "precision=fp32, or comm.wire=exact")),
        (("comm.wire=fp16",), ("'comm.wire'", "exact, bf16")),
        (("model=custom", "model.target=net.py:Net", "precision=bf16"), ("model=custom precision=bf16", "precision=mixed")),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n")
    done = sargnn_here(tmp_path, "train", *words)
    assert done.returncode == 1
    assert all(part in " ".join(done.stderr.split()) for part in parts), done.stderr


@pytest.mark.parametrize("name", ["bf16x3", "bf16x6"])
def test_a_run_of_a_precision_that_is_gone(tmp_path: Path, name: str) -> None:
    save(parse(compose_verb("train", ["precision=mixed"])), tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text((tmp_path / "config.yaml").read_text().replace("mixed", name))
    with pytest.raises(ConfigError, match=rf"(?s)'precision={name}' is gone.*fp32, or mixed"):
        load(tmp_path / "config.yaml")


def test_what_the_cpu_has(tmp_path: Path) -> None:
    known = tmp_path / "cpuinfo"
    known_flags: dict[str, tuple[str, ...]] = {
        "fpu sse2": (), "avx512_bf16 fpu": ("AVX512-BF16",), "amx_bf16 avx512_bf16": ("AMX", "AVX512-BF16"),
    }  # fmt: skip
    for flags, names in known_flags.items():
        known.with_name(flags).write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert bf16_instructions(known.with_name(flags)) == names
    assert bf16_instructions(tmp_path / "none") == ()
    assert "GFLOP/s in bf16" in describe_bf16()


def test_one_line_where_bf16_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sargnn.tracking.provenance.bf16_instructions", tuple)
    assert [one for one in PRECISIONS if without_bf16(one)] == ["bf16", "mixed"]
    monkeypatch.setattr("sargnn.tracking.provenance.bf16_instructions", lambda: ("AVX512-BF16",))
    assert [one for one in PRECISIONS if without_bf16(one)] == ["mixed"]
    monkeypatch.setattr("sargnn.tracking.provenance.bf16_instructions", lambda: ("AMX",))
    assert not any(without_bf16(one) for one in PRECISIONS)
    assert not any(without_bf16(one, "cuda") for one in PRECISIONS)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_bf16_logits(smoothing: float) -> None:
    """That of the widened ones; its gradient is rounded."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40_000, 47, generator=generator).bfloat16()
    labels, rows = torch.randint(47, (40_000,), generator=generator), torch.arange(0, 40_000, 3)
    targets, task = (
        Targets(labels, {"train": rows}, {"train": 2 * len(rows)}),
        node_task(labels, labels, label_smoothing=smoothing),
    )
    half, whole = logits.clone().requires_grad_(), logits.float().requires_grad_()
    share = task.loss(half, targets, Counted())
    wanted = F.cross_entropy(whole[rows], labels[rows], label_smoothing=smoothing, reduction="sum") / (2 * len(rows))
    assert share.dtype == torch.float32
    torch.testing.assert_close(share, wanted, rtol=1e-5, atol=0)
    share.backward()
    wanted.backward()
    assert half.grad is not None and whole.grad is not None
    torch.testing.assert_close(half.grad.float(), whole.grad, rtol=2**-8, atol=1e-10)


@pytest.mark.parametrize(("mine", "stock"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_adam_by_runs_of_rows_is_adam(mine: type[Adam], stock: type[torch.optim.Adam]) -> None:
    generator = torch.Generator().manual_seed(0)
    one = [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((9000, 128), (7,), (300, 1000))]
    two = [tensor.detach().clone().requires_grad_() for tensor in one]
    optimizers = mine(one, lr=0.01, weight_decay=0.1), stock(two, lr=0.01, weight_decay=0.1)
    for step in range(4):
        for a, b in zip(one, two, strict=True):
            gradient = None if step == 2 and a.dim() == 1 else torch.randn(a.shape, generator=generator)
            a.grad, b.grad = gradient, None if gradient is None else gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizers[0].state[a][key], optimizers[1].state[b][key])
