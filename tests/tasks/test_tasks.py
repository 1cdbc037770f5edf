"""Losses of the tasks, the best evaluation where smaller is better, and figures of before there were tasks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.manifest import digest_of
from sargnn.tasks.nodes import LABELS
from sargnn.training import checkpoint
from sargnn.training.history import History
from sargnn.training.loop import Rows
from tests.graphs import nasty_graph, with_task
from tests.parity import cases
from tests.pool import pool

NUMBERS = with_task(nasty_graph(), "regression")


def test_several_labels_are_smoothed_towards_a_half() -> None:
    logits, labels = torch.randn(30, 3, dtype=torch.float64), torch.randint(-1, 2, (30, 3), dtype=torch.int8)
    known = labels >= 0
    wanted = torch.tensor([[0.1], [0.9]], dtype=torch.float64)[labels[known].long(), 0]
    want = F.binary_cross_entropy_with_logits(logits[known], wanted, reduction="sum")
    assert torch.allclose(LABELS["multilabel"].loss_sum(logits, labels, 0.2), want, rtol=1e-12)
    assert LABELS["multilabel"].count(labels) == len(wanted)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_no_rows_give_a_zero_that_is_differentiable(task: str) -> None:
    logits = torch.randn(0, 3, requires_grad=True)
    labels = torch.zeros(0, 3, dtype=torch.int8 if task == "multilabel" else torch.float32)
    loss = LABELS[task].loss_sum(logits, labels, 0.0)  # type: ignore[index]
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None


def test_unknown_numbers_have_no_gradient() -> None:
    logits, labels = torch.ones(2, 2, requires_grad=True), torch.tensor([[3.0, torch.nan], [torch.nan, 1.5]])
    LABELS["regression"].loss_sum(logits, labels, 0.0).backward()
    assert torch.equal(logits.grad, torch.tensor([[-4.0, 0.0], [0.0, -1.0]]))  # type: ignore[arg-type]


def test_smaller_errors_are_better() -> None:
    history = History("regression", "mse")
    for val, test, stale in ((3.0, 0.1, 0), (4.0, 0.2, 1), (2.0, 0.3, 0), (2.0, 0.4, 1), (2.5, 0.5, 2)):
        history.add_evaluation({"train": 1.0, "valid": val, "test": test}, 0.1, 0)
        assert history.stale == stale
    assert (history.best_val, history.test_at_best_val) == (2.0, 0.4)  # the last of tied ones


def _run(group: Group, config: RunConfig, dataset: Dataset, run_dir: str) -> tuple[list[float | None], History]:
    trainer = cases.trainer_of(group, config, dataset)
    values: list[float | None] = []
    save = [checkpoint.Checkpoints(trainer, config, "some", Path(run_dir))] if run_dir else []
    trainer.run(0, Rows(lambda row: values.append(row.get("val_metric"))), *save)
    return values, trainer.loop.history


def numbers_config(**changes: object) -> RunConfig:
    config = cases.run_config(cases.model_config("sage"), epochs=20)
    config = dataclasses.replace(config, eval_every=1, optim=dataclasses.replace(config.optim, lr=0.3))
    kept = dataclasses.replace(config.checkpoint, every=1, keep=2)
    return dataclasses.replace(config, checkpoint=kept, **changes)  # type: ignore[arg-type]


def test_early_stopping_and_the_best_checkpoint_go_downwards(tmp_path: Path) -> None:
    whole, _ = _run(Group.single(), numbers_config(), NUMBERS, "")
    config = numbers_config(early_stopping=2, world=2)
    values, history = pool(2)(_run, config, NUMBERS, str(tmp_path))[0]
    best, stale, stop = np.inf, 0, len(whole)
    for epoch, value in enumerate(whole):
        assert value is not None
        stale = 0 if value < best else stale + 1
        best = min(best, value)
        if stale >= 2:
            stop = epoch + 1
            break
    assert 3 < stop < len(whole) and values == pytest.approx(whole[:stop], rel=1e-8)
    assert history.best_val == pytest.approx(best, rel=1e-8)
    path = checkpoint.best(tmp_path)
    assert path is not None and path == checkpoint.path_of(tmp_path, stop - 2)


def test_another_metric_starts_anew(tmp_path: Path) -> None:
    """What was best of one metric is not compared with another's values."""
    config = numbers_config()
    _, history = _run(Group.single(), dataclasses.replace(config, epochs=3), NUMBERS, str(tmp_path))
    path = checkpoint.path_of(tmp_path, 3)
    for metric, best in (("mse", history.best_val), ("mae", None)):
        trainer = cases.trainer_of(Group.single(), dataclasses.replace(config, metric=metric), NUMBERS)
        assert checkpoint.load(trainer, path) == 3 and trainer.loop.history.best_val == best


def test_a_checkpoint_of_before_there_were_tasks(tmp_path: Path) -> None:
    config = numbers_config(epochs=3)
    _, history = _run(Group.single(), config, nasty_graph(), str(tmp_path))
    for path in checkpoint.existing(tmp_path):
        manifest = json.loads((path / "manifest.json").read_text())
        meta = manifest["meta"]
        for key in ("task", "metric"):
            del meta[key]
        meta["accuracies"], meta["best_val_acc"] = meta.pop("scores"), meta.pop("best_val_metric")
        meta["test_acc_at_best_val"] = meta.pop("test_metric_at_best_val")
        del manifest["sha256"]
        (path / "manifest.json").write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    checkpoint.load(trainer, checkpoint.path_of(tmp_path, 3))
    assert trainer.loop.history.scores == history.scores and trainer.loop.history.best_val == history.best_val is not None
    assert checkpoint.best(tmp_path) is not None
