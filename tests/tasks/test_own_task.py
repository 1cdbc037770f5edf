"""A task with a loss of its own from outside of the package: one class in one file, and one setting."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.tasks.base import load_task
from sargnn.tracking.summary import read_summary
from tests.graphs import nasty_graph
from tests.in_process import sargnn_here as run
from tests.parity import cases
from tests.pool import pool

TOY = Path(__file__).parents[1] / "parity" / "toys" / "toy_task.py"
FOCAL = f"{TOY}:Focal"
SMALL = ["model.hidden=8", "dataset.num_nodes=200", "epochs=4", "eval_every=2", "precision=fp64", "tracking=none", "threads=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the task's file, and runs of one and of three workers."""
    path = tmp_path_factory.mktemp("own")
    shutil.copy(TOY, path)
    for world in (1, 3):
        words = ["task=toy_task.py:Focal", "checkpoint.every=2", f"world={world}", f"run_dir=w{world}"]
        done = run(path, "train", *SMALL, *words)
        assert done.returncode == 0, done.stderr
    return path


def losses_in(run_dir: Path) -> list[float]:
    summary = read_summary(run_dir)
    assert summary is not None and (summary.status, summary.task, summary.metric) == ("finished", "classes", "accuracy")
    return summary.losses


def test_any_number_of_workers_has_its_losses(folder: Path) -> None:
    losses = losses_in(folder / "w1")
    np.testing.assert_allclose(losses_in(folder / "w3"), losses, rtol=1e-8)
    assert run(folder, "train", *SMALL, "world=1", "run_dir=plain").returncode == 0
    plain = losses_in(folder / "plain")
    assert losses[0] < plain[0]  # each term is the other one's times less than one
    summaries = [json.loads((folder / name / "summary.json").read_text()) for name in ("w1", "plain")]
    assert summaries[0].keys() == summaries[1].keys() and summaries[0]["config_hash"] != summaries[1]["config_hash"]


@pytest.mark.parametrize("world", [1, 3])
def test_it_goes_on_from_a_checkpoint(folder: Path, world: int) -> None:
    shutil.copytree(folder / f"w{world}", folder / f"again{world}")
    shutil.rmtree(folder / f"again{world}" / "checkpoints" / "epoch_000004")
    (folder / f"again{world}" / "summary.json").unlink()
    done = run(folder, "train", f"resume=again{world}")
    assert done.returncode == 0, done.stderr
    assert losses_in(folder / f"again{world}") == losses_in(folder / f"w{world}")


@pytest.mark.parametrize("world", [1, 3])
def test_it_predicts_and_is_evaluated(folder: Path, world: int) -> None:
    for verb in ("predict", "evaluate"):
        done = run(folder, verb, f"run=w{world}")
        assert done.returncode == 0, done.stderr
    scores = json.loads((folder / f"w{world}" / "predictions" / "evaluation.json").read_text())["scores"]["predictions"]
    summary = read_summary(folder / f"w{world}")
    assert summary is not None
    assert [scores[name] for name in ("train", "valid", "test")] == [summary.train_acc, summary.val_acc, summary.test_acc]


def first_loss(group: Group, config: RunConfig, dataset: Dataset) -> tuple[float, float, bytes]:
    """Of the first step, and what its logits say that it is; and all gradients."""
    trainer = cases.trainer_of(group, config, dataset)
    trainer.model.train()
    view, total = trainer.training, torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        rows = view.targets.rows["train"]
        shares = trainer.forward.logits(view, 0).softmax(1)[rows, view.targets.labels[rows]]
        total[0], total[1] = -((1 - shares) ** 2 * shares.log()).sum(), len(rows)
    total = group.sum_(total)
    loss = trainer.loop.gradients().value
    return (
        loss,
        float(total[0] / total[1]),
        b"".join(p.grad.numpy().tobytes() for p in trainer.optimization.parameters if p.grad is not None),
    )


@pytest.mark.parametrize("world", [1, 3])
def test_the_loss_is_what_it_says(world: int) -> None:
    config = cases.run_config(cases.model_config("gcn", dropout=0.0), world=world, partitioner="random")
    config = dataclasses.replace(config, task=FOCAL, precision="fp64")
    answers = pool(world)(first_loss, config, nasty_graph())
    assert len({answer[2] for answer in answers}) == 1
    for loss, wanted, _ in answers:
        assert loss == pytest.approx(wanted, rel=1e-12)


def curve(group: Group, config: RunConfig, dataset: Dataset) -> list[float]:
    return cases.trainer_of(group, config, dataset).run().losses


@pytest.mark.parametrize(
    "choices",
    [
        {"labels": LabelsConfig("masked", 0.5, reuse=1)},
        {"batches": BatchesConfig(count=3)},
        {"batches": BatchesConfig(steps=2)},
    ],
    ids=["labels", "micro-batches", "steps"],
)
def test_what_a_step_is_made_of_is_nothing_to_it(choices: dict[str, Any]) -> None:
    config = cases.run_config(cases.model_config("sage", norm="layer"), world=3, partitioner="random", epochs=3)
    config = dataclasses.replace(config, task=FOCAL, precision="fp64", **choices)
    (alone,) = pool(1)(curve, cases.with_world(config, 1), nasty_graph())
    for losses in pool(3)(curve, config, nasty_graph()):
        np.testing.assert_allclose(losses, alone, rtol=1e-8)


def test_what_is_no_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("from sargnn.tasks.base import Task\nclass Half(Task):\n    pass\nLoss = 3\n")
    with pytest.raises(ConfigError, match="NodeTask"):
        load_task(f"{tmp_path}/wrong.py:Loss")
    with pytest.raises(ConfigError, match="not complete.*(?s:.)*loss"):
        load_task(f"{tmp_path}/wrong.py:Half")
    done = run(tmp_path, "train", *SMALL, "task=wrong.py:Loss")
    assert done.returncode == 1 and "NodeTask" in done.stderr
    done = run(tmp_path, "train", *SMALL, "task=focal")
    assert done.returncode == 1 and "'task'" in done.stderr and "'focal'" in done.stderr
