"""Schedules, clipping, label smoothing, early stopping."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import OptimConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import Schema
from sargnn.models.inputs import GraphShape
from sargnn.tasks.base import Counted
from sargnn.training import checkpoint
from sargnn.training.loop import Rows
from sargnn.training.optim import learning_rate
from tests.graphs import nasty_graph, typed_graph
from tests.parity import cases
from tests.pool import pool
from tests.tasks.made import node_task


def optim(**changes: Any) -> OptimConfig:
    return OptimConfig(**{"name": "adam", "lr": 0.4, "weight_decay": 0.0, "schedule": "constant", **changes})


def rates(epochs: int, **changes: Any) -> list[float]:
    return [learning_rate(optim(**changes), epoch, epochs) for epoch in range(epochs)]


def test_schedules() -> None:
    assert rates(3) == [0.4] * 3
    assert rates(4, schedule="cosine") == pytest.approx([0.2 * (1 + math.cos(math.pi * e / 4)) for e in range(4)])
    assert rates(5, schedule="step", step_every=2, step_factor=0.5) == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.1])
    warm = rates(6, schedule="cosine", warmup=2)
    assert warm == pytest.approx([0.2, 0.4, *(0.2 * (1 + math.cos(math.pi * e / 4)) for e in range(4))])
    assert rates(2, warmup=4) == pytest.approx([0.1, 0.2])


def test_label_smoothing_is_pytorchs() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(20, 5), torch.randint(5, (20,))
    split = torch.tensor([1, 2] * 10, dtype=torch.uint8)
    task = node_task(labels, split, label_smoothing=0.3)
    want = torch.nn.functional.cross_entropy(logits[::2], labels[::2], label_smoothing=0.3)
    assert torch.allclose(task.loss(logits, task.targets(None), Counted()), want)


def _norms(group: Group, config: RunConfig, dataset: Dataset) -> tuple[float, float, list[float]]:
    """Of all gradients after an epoch with clipping, this rank's own and replicated parts, and the losses."""
    trainer = cases.trainer_of(group, config, dataset)
    losses = [trainer.loop.train_epoch(epoch).loss for epoch in range(4)]
    squares = [
        sum(float(p.grad.square().sum()) for p in ps if p.grad is not None)
        for ps in (trainer.optimization.replicated, trainer.optimization.sharded)
    ]
    return squares[0], squares[1], losses


@pytest.mark.parametrize("name", ["sage", "rgcn"])
def test_clipping_takes_the_norm_over_all_workers(name: str) -> None:
    """Embeddings live on different workers, and count once."""
    dataset = typed_graph() if name == "rgcn" else nasty_graph()
    limit, curves = 0.01, []
    for world in (1, 4):
        config = cases.run_config(cases.model_config(name), world=world, partitioner="random")
        answers = pool(world)(_norms, dataclasses.replace(config, optim=optim(clip=limit)), dataset)
        assert math.sqrt(answers[0][0] + sum(own for _, own, _ in answers)) == pytest.approx(limit)
        curves.append(answers[0][2])
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-8)
    config = cases.run_config(cases.model_config(name))
    assert (
        pool(1)(_norms, dataclasses.replace(config, optim=optim(clip=1e9)), dataset)[0][2]
        == (pool(1)(_norms, dataclasses.replace(config, optim=optim()), dataset)[0][2])
    )


def _until(group: Group, config: RunConfig, dataset: Dataset, run_dir: str = "", start: str = "") -> list[float | None]:
    trainer = cases.trainer_of(group, config, dataset)
    first = 0
    if start:
        first = checkpoint.load(trainer, Path(start))
    accuracies: list[float | None] = []
    save = [checkpoint.Checkpoints(trainer, config, "some", Path(run_dir))] if run_dir else []
    trainer.run(first, Rows(lambda row: accuracies.append(row.get("val_acc"))), *save)
    return accuracies


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping(patience: int) -> None:
    config = dataclasses.replace(cases.run_config(cases.model_config("sage"), world=2, epochs=60), eval_every=2)
    whole = _until(Group.single(), config, nasty_graph())
    found = pool(2)(_until, dataclasses.replace(config, early_stopping=patience), nasty_graph())[0]
    best, stale, stop = -1.0, 0, len(whole)
    for epoch, accuracy in enumerate(whole):
        if accuracy is not None:
            stale = 0 if accuracy > best else stale + 1
            best = max(best, accuracy)
        if stale >= patience:
            stop = epoch + 1
            break
    assert found == whole[:stop] and stop < 60


def test_early_stopping_holds_after_a_resume(tmp_path: Path) -> None:
    """Also when the run ended, and what came after training did not."""
    config = dataclasses.replace(cases.run_config(cases.model_config("sage"), epochs=60), eval_every=2, early_stopping=2)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=1, keep=99))
    whole = _until(Group.single(), config, nasty_graph(), str(tmp_path))
    for epoch in (len(whole), len(whole) - 2, 3):
        rest = _until(Group.single(), config, nasty_graph(), "", str(checkpoint.path_of(tmp_path, epoch)))
        assert rest == whole[epoch:]


OWN = {"convolutions": 0.3, "first": 0.1}


def _decayed(name: str) -> float:
    """GCNII's first map is ``first``, its second to last but one layer are ``convolutions``."""
    layer = int(name.split(".")[1])
    return OWN["first"] if layer == 0 else OWN["convolutions"] if layer < 4 else 0.02


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_groups_of_parameters_have_a_weight_decay_of_their_own(kind: str) -> None:
    config = cases.run_config(cases.model_config("gcnii", norm="none"))
    config = dataclasses.replace(config, optim=optim(name=kind, weight_decay=0.02, weight_decay_of=OWN))
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    own = {name: p.detach().clone().requires_grad_() for name, p in trainer.model.named_parameters()}
    one_each = [{"params": [p], "weight_decay": _decayed(name)} for name, p in own.items()]
    other = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](one_each, lr=0.4)
    for epoch in range(3):
        trainer.loop.train_epoch(epoch)
        for name, p in trainer.model.named_parameters():
            assert p.grad is not None
            own[name].grad = p.grad.clone()
        other.step()
        for name, p in trainer.model.named_parameters():
            torch.testing.assert_close(p.detach(), own[name].detach(), rtol=1e-12, atol=1e-12)


def test_decay_of_groups_holds_after_a_resume(tmp_path: Path) -> None:
    config = cases.run_config(cases.model_config("appnp"), epochs=6)
    config = dataclasses.replace(config, optim=optim(lr=0.01, weight_decay_of={"first": 0.2, "norms": 0.1}))
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=3, keep=9))

    def losses(start: str) -> list[float]:
        trainer = cases.trainer_of(Group.single(), config, nasty_graph())
        first = 0
        if start:
            first = checkpoint.load(trainer, Path(start))
        trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", tmp_path))
        return trainer.loop.history.losses

    assert losses("") == losses(str(checkpoint.path_of(tmp_path, 3)))


@pytest.mark.parametrize(
    ("model", "groups"),
    [("gcnii", "first, norms, convolutions"), ("sage", "first, norms"), ("sgc", "first"), ("label_propagation", "no groups")],
)
def test_a_group_that_is_not_there(model: str, groups: str) -> None:
    config = cases.run_config(cases.model_config(model))
    with pytest.raises(ConfigError, match=f"'optim.weight_decay_of'.*(?s:.*)last(?s:.*){groups}"):
        cases.trainer_of(Group.single(), dataclasses.replace(config, optim=optim(weight_decay_of={"last": 1.0})), nasty_graph())


def test_the_groups_of_a_module_are_its_own_modules() -> None:
    shape = GraphShape(Schema.homogeneous(10), (4,), 3)
    target = f"{Path(__file__).parents[1] / 'parity' / 'toys' / 'dgl_stacks.py'}:Stack"
    model = CustomSettings("custom", target=target, args={"kind": "sage_mean"}).build(shape)
    assert list(model.decay_groups()) == ["layers"] and len(model.decay_groups()["layers"]) == len(list(model.parameters()))
