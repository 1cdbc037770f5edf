"""Learned rows, their moments and averages in a file (``spill``): the same bits, checkpoints that go both ways, and no more in
memory than a run of rows."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from sargnn.backends import spill
from sargnn.backends.memory import Pool
from sargnn.backends.spill import SpillingPool
from sargnn.backends.spill_file import SpillFile, resident_pages
from sargnn.comm.group import Group
from sargnn.config.groups import CheckpointConfig, LinksConfig
from sargnn.config.run import RunConfig
from sargnn.errors import SargnnError
from sargnn.graph.dataset import Dataset
from sargnn.sources.links import draw_links
from sargnn.training import checkpoint, optim
from sargnn.training.optim import Adam
from tests.graphs import knowledge_graph, typed_graph
from tests.parity import cases
from tests.pool import near

EPOCHS, HALF = 4, 2
GRAPHS = {"rgcn": typed_graph(), "none": draw_links(knowledge_graph(), [0.6, 0.15, 0.15])}
ROWS, WIDTH = 1 << 17, 64
_SHARED: list[Pool] = []
"""The pool of all ranks, or none: then each has its own."""


@contextmanager
def spilling(folder: Path) -> Iterator[SpillingPool]:
    """A pool of all ranks, which lets go of what lasts whenever it may."""
    pool = SpillingPool(SpillFile(folder))
    _SHARED[:] = [pool]
    yield pool
    _SHARED.clear()
    pool.close()


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table a few rows are updated at a time, and it lies in a file where there is one."""
    monkeypatch.setattr(optim, "_NUMBERS_AT_ONCE", 48)
    monkeypatch.setattr(spill, "_LAID_BYTES", 1)


def config_of(model: str, world: int, precision: str) -> RunConfig:
    config = cases.run_config(cases.model_config(model), world=world, precision=precision, epochs=EPOCHS, aggregate="post")
    if model == "none":
        config = dataclasses.replace(config, task="links", links=LinksConfig(decoder="distmult", negatives=2))
    changed = dataclasses.replace(config.optim, average=0.9, clip=0.5, weight_decay=0.01)
    return dataclasses.replace(config, optim=changed, checkpoint=CheckpointConfig(every=HALF, keep=9))


def trained(group: Group, config: RunConfig, dataset: Dataset, run_dir: Path, start: Path | None = None) -> dict[str, Any]:
    pool = _SHARED[0] if _SHARED else Pool()
    trainer = cases.trainer_of(group, config, dataset, lambda *, enabled: pool)
    first = 0 if start is None else checkpoint.load(trainer, start)
    with pool.within(group.putting_away):
        losses = trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", run_dir)).losses
    optimization = trainer.optimization
    assert optimization.optimizer is not None
    states = [optimization.optimizer.state[p] for p in optimization.sharded]
    averages = [optimization.averages[id(p)] for p in optimization.sharded]
    lasting = [*optimization.sharded, *averages, *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq"))]
    in_files = [pool._file.has(table) for table in lasting if table.numel() > 48] if isinstance(pool, SpillingPool) else []
    steps = [float(state["step"]) for state in optimization.optimizer.state.values()]
    tables = [*optimization.replicated, *lasting]
    return {"losses": losses, "tables": [t.detach().numpy().tobytes() for t in tables], "in files": in_files, "steps": steps}


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize(("model", "world", "precision"), [("none", 1, "fp32"), ("rgcn", 2, "fp32"), ("rgcn", 2, "bf16")])
def test_the_same_bits_also_after_a_resume(tmp_path: Path, model: str, world: int, precision: str) -> None:
    """Of links on one worker alone: others' parts of a row's gradient are added as they come."""
    config, graph, run = config_of(model, world, precision), GRAPHS[model], near(world)
    half = {name: checkpoint.path_of(tmp_path / name, HALF) for name in ("memory", "file")}
    expected = run(trained, config, graph, tmp_path / "memory")
    with spilling(tmp_path):
        spilled = run(trained, config, graph, tmp_path / "file")
        from_memory = run(trained, config, graph, tmp_path / "more", half["memory"])
    from_file = run(trained, config, graph, tmp_path / "again", half["file"])
    for found in (spilled, from_memory, from_file):
        for here, there in zip(found, expected, strict=True):
            assert here["losses"] == there["losses"] and here["steps"] == there["steps"] == [EPOCHS] * len(there["steps"])
            assert here["tables"] == there["tables"]
    for of_rank in (*spilled, *from_memory):
        assert of_rank["in files"] and all(of_rank["in files"])
    for path in half["memory"].rglob("*.npy"):
        assert path.read_bytes() == (half["file"] / path.relative_to(half["memory"])).read_bytes()


def test_no_more_than_a_run_of_rows_is_in_memory(tmp_path: Path) -> None:
    """Of three tables of 32 MB, while a step goes through them."""
    most = 0
    with spilling(tmp_path) as pool:
        table = nn.Parameter(pool.lasting(ROWS, WIDTH, torch.empty(0)))
        table.grad = torch.ones(ROWS, WIDTH)
        optimizer = Adam([table], lr=0.1)
        optimizer.pool = pool
        optimizer.step()  # what libraries take the first time
        statm, rest = os.open("/proc/self/statm", os.O_RDONLY), pool.rest
        before = resident_pages(statm)[1]

        def note(tensor: torch.Tensor) -> None:
            nonlocal most
            most = max(most, resident_pages(statm)[1] - before)
            rest(tensor)

        with patch.object(pool, "rest", note):
            optimizer.step()
        os.close(statm)
        assert 1 << 20 < most < 12 << 20
        assert torch.allclose(table, torch.full((), -0.2), atol=1e-4)
        del optimizer, table


def test_what_has_room_stays(tmp_path: Path) -> None:
    pool = SpillingPool(SpillFile(tmp_path), 1 << 50)
    table = pool.lasting(ROWS, WIDTH, torch.empty(0)).fill_(1)
    with patch.object(SpillFile, "drop") as drop:
        pool.rest(table)
    assert not drop.called
    pool.close()


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    with (
        spilling(tmp_path) as pool,
        patch.object(os, "posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")),
        pytest.raises(SargnnError, match=r"is full(.|\n)*spill_dir"),
    ):
        pool.lasting(ROWS, WIDTH, torch.empty(0))
