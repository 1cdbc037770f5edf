"""Schedules, clipping, label smoothing, class weights, averages, early stopping."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import get_ema_avg_fn

from sargnn.comm.group import Group
from sargnn.config.groups import OptimConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import Schema
from sargnn.models.inputs import GraphShape
from sargnn.tasks.base import Counted
from sargnn.tasks.nodes import check_loss, scaled_weights
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


def test_groups_of_parameters_have_a_rate_of_their_own() -> None:
    """The schedule changes all of them likewise."""
    config = cases.run_config(cases.model_config("gcnii", norm="none"), epochs=3)
    rates = {"convolutions": 0.3, "first": 0.1}
    config = dataclasses.replace(config, optim=optim(schedule="cosine", lr_of=rates))
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    own = {name: p.detach().clone().requires_grad_() for name, p in trainer.model.named_parameters()}
    decays = {"convolutions": OWN["convolutions"], "first": OWN["first"]}
    names = {value: name for name, value in decays.items()}
    of = {name: rates.get(names.get(_decayed(name), ""), 0.4) for name in own}
    other = torch.optim.Adam([{"params": [p], "lr": of[name]} for name, p in own.items()])
    for epoch in range(3):
        trainer.loop.train_epoch(epoch)
        for name, group in zip(own, other.param_groups, strict=True):
            parameter = trainer.model.get_parameter(name)
            assert parameter.grad is not None
            own[name].grad = parameter.grad.clone()
            group["lr"] = of[name] * (1 + math.cos(math.pi * epoch / 3)) / 2
        other.step()
        for name, p in own.items():
            torch.testing.assert_close(trainer.model.get_parameter(name).detach(), p.detach(), rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("weights", [[0.5, 3.0, 0.0, 1.0], "balanced"])
def test_class_weights_are_pytorchs(weights: Any) -> None:
    """Of a whole training set; one class has no label."""
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 4), torch.randint(3, (40,))
    split = torch.tensor([1, 2] * 20, dtype=torch.uint8)
    config = dataclasses.replace(cases.run_config(cases.model_config("sage")), optim=optim(class_weights=weights))
    scaled = scaled_weights(weights, labels[split == 1], 4, Group.single())
    counts = torch.bincount(labels[split == 1], minlength=4)
    given = 1 / counts.clamp(min=1) if weights == "balanced" else torch.tensor(weights)
    task = node_task(labels, split, num_classes=4)
    task.label_loss.weights = scaled
    want = torch.nn.functional.cross_entropy(logits[::2], labels[::2], given.to(logits.dtype))
    assert torch.allclose(task.loss(logits, task.targets(None), Counted()), want)
    curves = [
        pool(world)(cases.curve, dataclasses.replace(config, world=world, optim=optim(class_weights=own)), nasty_graph())[0]
        for world, own in ((1, "balanced"), (4, "balanced"), (1, None))
    ]
    np.testing.assert_allclose(curves[1]["losses"], curves[0]["losses"], rtol=1e-8)
    assert curves[0]["losses"] != curves[2]["losses"]


@pytest.mark.parametrize(
    ("weights", "labels", "words"),
    [
        ([1.0, 2.0], "classes", "10 numbers"),
        ([0.0] * 10, "classes", "not all"),
        ("balanced", "regression", "Only classes"),
    ],
)
def test_wrong_class_weights(weights: Any, labels: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config = dataclasses.replace(cases.run_config(cases.model_config("sage")), optim=optim(class_weights=weights))
        check_loss(config, labels, 10, np.arange(3))


def _averaged(group: Group, config: RunConfig, dataset: Dataset, run_dir: str, start: str) -> dict[str, Any]:
    """Train, from a checkpoint where one is given: averages by PyTorch beside ours, parameters, scores, logits."""
    trainer = cases.trainer_of(group, config, dataset)
    theirs = [p.detach().clone() for p in trainer.optimization.parameters]
    update, first = get_ema_avg_fn(0.8), checkpoint.load(trainer, Path(start)) if start else 0
    step, steps = trainer.optimization.step, [0]

    def stepped(group: Group) -> None:
        step(group)
        for average, parameter in zip(theirs, trainer.optimization.parameters, strict=True):
            average.copy_(parameter.detach() if not steps[0] else update(average, parameter.detach(), torch.tensor(steps[0])))
        steps[0] += 1

    trainer.optimization.step = stepped  # type: ignore[method-assign]
    trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)))
    ours = [trainer.optimization.averages[id(p)] for p in trainer.optimization.parameters]
    with trainer.optimization.averaged():
        logits = trainer.evaluator.predictions()
        inside = [p.detach().clone() for p in trainer.optimization.parameters]
    return {
        "losses": trainer.loop.history.losses,
        "theirs": [average.numpy() for average in theirs],
        "ours": [average.numpy() for average in ours],
        "inside": [average.numpy() for average in inside],
        "now": [p.detach().numpy() for p in trainer.optimization.parameters],
        "logits": logits.numpy(),
        "scores": trainer.loop.history.scores,
    }


@pytest.mark.parametrize(("name", "world"), [("sage", 2), ("rgcn", 4)])
def test_averages_are_pytorchs(name: str, world: int, tmp_path: Path) -> None:
    """Also of embeddings, which live on different workers; evaluations, resumed runs and predictions have them."""
    dataset = cases.graph_for(name)
    config = cases.run_config(cases.model_config(name), world=world, partitioner="random", epochs=6)
    config = dataclasses.replace(config, optim=optim(lr=0.01, average=0.8))
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=3, keep=9))
    whole = pool(world)(_averaged, config, dataset, str(tmp_path), "")
    for answer in whole:
        for own, other, inside in zip(answer["ours"], answer["theirs"], answer["inside"], strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-14)
            assert np.array_equal(own, inside)
        assert not all(np.array_equal(own, now) for own, now in zip(answer["ours"], answer["now"], strict=True))
    again = pool(world)(_averaged, config, dataset, str(tmp_path / "again"), str(checkpoint.path_of(tmp_path, 3)))
    plain = dataclasses.replace(config, optim=optim(lr=0.01))
    loaded = pool(world)(_predicted, plain, dataset, str(checkpoint.path_of(tmp_path, 6)))
    for answer, resumed, logits in zip(whole, again, loaded, strict=True):
        assert all(np.array_equal(*both) for both in zip(answer["ours"], resumed["ours"], strict=True))
        assert answer["scores"] == resumed["scores"] and np.array_equal(answer["logits"], logits)


def _predicted(group: Group, config: RunConfig, dataset: Dataset, start: str) -> np.ndarray:
    """By the parameters of a checkpoint that is not trained on."""
    trainer = cases.trainer_of(group, config, dataset)
    checkpoint.load(trainer, Path(start), moments=False)
    logits: np.ndarray = trainer.evaluator.predictions().numpy()
    return logits


@pytest.mark.parametrize("world", [1, 2])
def test_selection_by_the_validation_loss(world: int, tmp_path: Path) -> None:
    """It decides the best epoch, the best checkpoint and when training stops."""
    config = cases.run_config(cases.model_config("sage"), world=world, epochs=40, partitioner="random")
    config = dataclasses.replace(config, eval_every=1, early_stopping=3, select="val_loss", optim=optim(lr=0.1))
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=1, keep=99))
    rows = pool(world)(_rows, config, nasty_graph(), str(tmp_path))[0]
    losses = [row["val_loss"] for row in rows]
    best = max(epoch for epoch, loss in enumerate(losses) if loss == min(losses))
    assert len(rows) == 1 + losses.index(min(losses)) + 3 < 40
    kept = checkpoint.best(tmp_path)
    assert kept == checkpoint.path_of(tmp_path, best + 1)
    meta = checkpoint.open_checkpoint(checkpoint.path_of(tmp_path, len(rows)), verify=False).meta
    assert meta["best_val_metric"] == rows[best]["val_metric"] and meta["best_selected"] == losses[best]
    trainer = cases.trainer_of(Group.single(), dataclasses.replace(config, world=1), nasty_graph())
    checkpoint.load(trainer, checkpoint.path_of(tmp_path, len(rows)))
    history = trainer.loop.history
    assert (history.best_selected, history.stale) == (losses[best], 3)
    view, task = trainer.evaluation, trainer.task
    checkpoint.load(trainer, checkpoint.path_of(tmp_path, best + 1), moments=False)
    logits, targets = trainer.evaluator.predictions(), view.targets
    rows_of = targets.rows["valid"]
    want = torch.nn.functional.cross_entropy(logits[rows_of], targets.labels[rows_of])
    assert task.validation_loss(logits, targets) == pytest.approx(float(want)) == pytest.approx(losses[best])


def _rows(group: Group, config: RunConfig, dataset: Dataset, run_dir: str) -> list[dict[str, Any]]:
    trainer = cases.trainer_of(group, config, dataset)
    rows: list[dict[str, Any]] = []
    trainer.run(0, Rows(rows.append), checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)))
    return rows


def test_a_limit_of_time() -> None:
    """The epoch in which it is reached is the last, and is evaluated; a run that is over stays so."""
    config = dataclasses.replace(cases.run_config(cases.model_config("sage"), epochs=50), max_seconds=1e-9, eval_every=7)
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    history = trainer.run()
    assert len(history.losses) == 1 and len(history.evaluate_times_s) == 1
    assert len(trainer.run(1).losses) == 1
