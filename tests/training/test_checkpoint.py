"""Checkpoints: the state comes back bit for bit, on any number of workers, and damage is seen before it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, CheckpointConfig, LabelsConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.errors import StoreError
from sargnn.graph.dataset import Dataset
from sargnn.training import checkpoint
from tests.graphs import nasty_graph, typed_graph, with_odd_names
from tests.parity import cases
from tests.parity.covering import only, spread
from tests.pool import pool

EPOCHS, HALF = 5, 2
GRAPHS = {"sage": nasty_graph(), "gat": nasty_graph(), "rgcn": typed_graph()}


def config_of(name: str, **choices: Any) -> RunConfig:
    config = cases.run_config(cases.model_config(name, input_dropout=0.2), epochs=EPOCHS, **choices)
    return dataclasses.replace(config, checkpoint=CheckpointConfig(every=HALF, keep=2), eval_every=2)


def trained(group: Group, config: RunConfig, dataset: Dataset, run_dir: str, start: str | None) -> dict[str, Any]:
    """Train to the end, from a checkpoint if one is given; write checkpoints."""
    trainer = cases.trainer_of(group, config, dataset)
    first = 0
    if start is not None:
        first = checkpoint.load(trainer, Path(start))
    trainer.run(
        first,
        checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)),
    )
    parameters = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    buffers = b"".join(b.numpy().tobytes() for b in trainer.model.buffers())
    history = trainer.loop.history
    return {
        "losses": history.losses, "state": parameters + buffers, "best": (history.best_val, history.test_at_best_val),
        "bytes": history.epoch_bytes,
    }  # fmt: skip


def test_epochs_written(tmp_path: Path) -> None:
    trained(Group.single(), config_of("sage"), GRAPHS["sage"], str(tmp_path), None)
    names = [path.name for path in checkpoint.existing(tmp_path)]
    assert names[-2:] == ["epoch_000004", "epoch_000005"]  # every other one, and the last


@pytest.mark.parametrize(("name", "world", "precision"), spread(list(GRAPHS), [1, 4], ["fp32", "fp64"]))
def test_going_on_is_bit_identical(tmp_path: Path, name: str, world: int, precision: str) -> None:
    config = config_of(name, world=world, partitioner="random", precision=precision)
    keep_all = dataclasses.replace(config, checkpoint=CheckpointConfig(every=HALF, keep=9))
    whole = pool(world)(trained, keep_all, GRAPHS[name], str(tmp_path / "a"), None)
    start = str(checkpoint.path_of(tmp_path / "a", HALF))
    again = pool(world)(trained, keep_all, GRAPHS[name], str(tmp_path / "b"), start)
    for one, other in zip(whole, again, strict=True):
        assert one == other  # losses, parameters, buffers, best figures
        assert len(one["losses"]) == EPOCHS


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[float]]]:
    """Of a model: the folder with its checkpoints, and its losses; trained once, on four workers."""

    @cache
    def train(name: str) -> tuple[Path, list[float]]:
        folder = tmp_path_factory.mktemp(name)
        config = config_of(name, world=4, partitioner="random")
        config = dataclasses.replace(config, checkpoint=CheckpointConfig(every=HALF, keep=9))
        return folder, pool(4)(trained, config, GRAPHS[name], str(folder), None)[0]["losses"]

    return train


@pytest.mark.parametrize(
    "choices",
    [
        {"world": 1}, {"world": 2, "partitioner": "range"}, {"world": 4, "mode": "domain_parallel", "partitioner": "by_type"},
        {"world": 4, "mode": "one_shot", "kernel": "reference"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", only(["rgcn"], ["sage", "rgcn"]))
def test_going_on_elsewhere_is_the_same_curve(
    uninterrupted: Callable[[str], tuple[Path, list[float]]], tmp_path: Path, name: str, choices: dict[str, Any]
) -> None:
    if name == "sage" and choices.get("partitioner") == "by_type":
        choices = choices | {"partitioner": "metis"}
    folder, losses = uninterrupted(name)
    other = config_of(name, **choices)
    again = pool(other.world)(trained, other, GRAPHS[name], str(tmp_path), str(checkpoint.path_of(folder, HALF)))[0]
    np.testing.assert_allclose(again["losses"], losses, rtol=1e-8)


def test_types_and_relations_with_names_that_no_file_can_have(tmp_path: Path) -> None:
    """They go on as those with ordinary names do; the latter's files are called after them."""
    config = dataclasses.replace(config_of("rgcn", world=2), epochs=2, checkpoint=CheckpointConfig(every=1, keep=9))
    graphs = {"plain": GRAPHS["rgcn"], "odd": with_odd_names(GRAPHS["rgcn"])}
    whole = {name: pool(2)(trained, config, one, str(tmp_path / name), None)[0] for name, one in graphs.items()}
    assert whole["odd"] == whole["plain"]
    start = checkpoint.path_of(tmp_path / "odd", 1)
    checkpoint.open_checkpoint(start, verify=True)
    again = pool(2)(trained, config, graphs["odd"], str(tmp_path / "again"), str(start))[0]
    assert again == whole["odd"]
    files = [path.name for path in (checkpoint.path_of(tmp_path / "plain", 1) / "param").iterdir()]
    assert "inputs.embeddings.00_author.npy" in files


def test_embeddings_lie_in_the_order_of_original_ids(tmp_path: Path) -> None:
    """The same file whatever the partition."""
    tables = []
    for world, partitioner in ((1, "range"), (4, "random"), (4, "by_type")):
        folder = tmp_path / f"{partitioner}{world}"
        pool(world)(trained, config_of("rgcn", world=world, partitioner=partitioner), GRAPHS["rgcn"], str(folder), None)
        store = checkpoint.open_checkpoint(checkpoint.path_of(folder, EPOCHS), verify=True)
        kinds = ("param", "first_moment", "second_moment")
        tables.append([store.array(f"{kind}/inputs.embeddings.00_author") for kind in kinds])
        assert tables[-1][0].shape == (90, 11)
    for other in tables[1:]:
        for one, two in zip(tables[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-12)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    trained(Group.single(), config_of("sage"), GRAPHS["sage"], str(tmp_path), None)
    before, last = checkpoint.existing(tmp_path)[-2:]
    file = next(last.rglob("*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    path, problems = checkpoint.newest(tmp_path)
    assert path == before and [bad for bad, _ in problems] == [last] and file.name in str(problems[0][1])
    manifest = before / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"epoch": 4', '"epoch": 3'))
    path, problems = checkpoint.newest(tmp_path)
    assert path not in (before, last) and "manifest.json" in str(problems[1][1])


def test_the_best_is_kept(tmp_path: Path) -> None:
    config = dataclasses.replace(config_of("sage"), checkpoint=CheckpointConfig(every=1, keep=2))
    trained(Group.single(), config, GRAPHS["sage"], str(tmp_path), None)
    paths = checkpoint.existing(tmp_path)
    assert [path.name for path in paths[-2:]] == ["epoch_000004", "epoch_000005"] and len(paths) <= 3
    best = max(checkpoint.open_checkpoint(path, verify=False).meta["scores"].get("valid") or 0 for path in paths)
    top = checkpoint.open_checkpoint(paths[-1], verify=False).meta["best_val_metric"]
    assert best == top


def test_a_write_that_fails_leaves_the_others_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = cases.trainer_of(Group.single(), config_of("sage"), GRAPHS["sage"])
    trainer.loop.train_epoch(0)
    checkpoint.save(trainer, trainer.config, "some", tmp_path, 1)

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StoreError, match="disk is full"):
        checkpoint.save(trainer, trainer.config, "some", tmp_path, 2)
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path) == (checkpoint.path_of(tmp_path, 1), [])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["epoch_000001"]


def stopped(group: Group, config: RunConfig, dataset: Dataset, run_dir: str, start: str | None, after: int) -> bool:
    """Train until a signal comes to the last rank during a step, counted from the beginning; write the checkpoint."""
    trainer = cases.trainer_of(group, config, dataset)
    first = 0
    if start is not None:
        first = checkpoint.load(trainer, Path(start))
    train_step = trainer.loop.train_step

    def train_and_hear(epoch: int, step: int) -> tuple[float, int, float]:
        if group.rank == group.world - 1 and epoch * trainer.loop.steps.count + step == after:
            trainer.loop.requests.stop = trainer.loop.requests.checkpoint = True
        return train_step(epoch, step)

    trainer.loop.train_step = train_and_hear  # type: ignore[method-assign]
    trainer.run(
        first,
        checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)),
    )
    return trainer.loop.stopped


@pytest.mark.parametrize(
    ("name", "world", "other"),
    [
        pytest.param("sage", 2, 2, marks=pytest.mark.long),
        pytest.param("rgcn", 1, 1, marks=pytest.mark.long),
        ("gat", 2, 3),
    ],
)
def test_going_on_within_an_epoch(tmp_path: Path, name: str, world: int, other: int) -> None:
    """A run that was ended twice between two steps is the run that was not, bit for bit; on other workers the same curve."""
    draws = {"batches": BatchesConfig(steps=5), "sample": SampleConfig(fanouts=[3, 3, 3]), "labels": LabelsConfig("masked")}
    config = config_of(name, world=world, partitioner="random", **draws)
    keep_all = dataclasses.replace(config, checkpoint=CheckpointConfig(every=HALF, keep=99))
    whole = pool(world)(trained, keep_all, GRAPHS[name], str(tmp_path / "a"), None)
    assert all(pool(world)(stopped, keep_all, GRAPHS[name], str(tmp_path / "b"), None, 2))  # in the first epoch
    first, _ = checkpoint.newest(tmp_path / "b")
    assert first is not None and first.name == "epoch_000000_step_000003"
    assert all(pool(world)(stopped, keep_all, GRAPHS[name], str(tmp_path / "b"), str(first), 12))
    second, _ = checkpoint.newest(tmp_path / "b")
    assert second is not None and second.name == "epoch_000002_step_000003"
    elsewhere = dataclasses.replace(keep_all, world=other)
    again = pool(other)(trained, elsewhere, GRAPHS[name], str(tmp_path / "c"), str(second))
    if world != other:
        np.testing.assert_allclose(again[0]["losses"], whole[0]["losses"], rtol=1e-8)
        return
    for one, two in zip(whole, again, strict=True):
        assert one == two
