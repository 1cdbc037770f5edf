"""``dataset.loop_features=mean``: a self-loop that is added has the mean features of its node's in-edges, as PyG makes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.graph.dataset import Dataset, group_by
from sargnn.graph.edge_columns import ATTR, EdgeColumns, names_to_json
from sargnn.graph.store import StoreWriter
from sargnn.partition.cut import parts_of
from sargnn.partition.part import Part
from sargnn.partition.store import FORMAT_VERSION, open_part
from sargnn.plan.load import PlanSettings, load_plan, with_self_loops
from tests.graphs import assign, nasty_graph, with_edge_features
from tests.parity import cases
from tests.parity.checks import assert_same_curve
from tests.partition.cuts import write_parts
from tests.pool import pool

NARROW, WIDE = 1, 5
GRAPHS = {width: with_edge_features(nasty_graph(120, seed=3), width) for width in (NARROW, WIDE)}


def parts_on_disk(graph: Dataset, assignment: np.ndarray, world: int, folder: Path) -> list[Part]:
    with StoreWriter(folder / "parts", "partition", FORMAT_VERSION) as writer:
        write_parts(writer, graph, *group_by(assignment, world))
        writer.meta = {"schema": graph.schema.to_json(), "num_classes": 5} | names_to_json(graph.columns.forms)
    return [open_part(folder / "parts", rank) for rank in range(world)]


def wanted(graph: Dataset, fill: str) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations [2, E], and features [E, D], as PyG's attention layers have them."""
    loops = pytest.importorskip("torch_geometric.utils.loop")
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    index = torch.from_numpy(np.stack([np.asarray(graph.indices), destination]).astype(np.int64))
    index, numbers = loops.remove_self_loops(index, torch.from_numpy(np.array(graph.columns[ATTR])).double())
    index, numbers = loops.add_self_loops(index, numbers, 0.0 if fill == "zeros" else fill, graph.num_nodes)
    return index.numpy(), numbers.float().numpy()


def in_order(index: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parallel edges by their numbers."""
    order = np.lexsort((*numbers.T, *index))
    return index[:, order], numbers[order]


@pytest.mark.parametrize("fill", ["mean", "zeros"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("width", GRAPHS)
def test_against_pyg(width: int, world: int, stored: bool, fill: str, tmp_path: Path) -> None:
    graph, assignment = GRAPHS[width], assign(GRAPHS[width], "random", world)
    parts = parts_on_disk(graph, assignment, world, tmp_path) if stored else list(parts_of(graph, assignment, world))
    index, numbers = [], []
    for rank, given in enumerate(parts):
        assert len(given.columns[ATTR]) == len(given.edge_src)
        plan = load_plan(with_self_loops(given, rank, means=fill == "mean"), PlanSettings(rank, "sharded"))
        index.append(torch.stack(plan.edge_ends()).numpy())
        numbers.append(plan.edge_column(ATTR).numpy())
    ends, features = in_order(np.concatenate(index, 1), np.concatenate(numbers))
    wanted_ends, wanted_features = in_order(*wanted(graph, fill))
    assert np.array_equal(ends, wanted_ends)
    assert np.allclose(features, wanted_features, atol=1e-6)
    assert stored or fill == "zeros" or features[ends[0] == ends[1]].any()


def with_loops(graph: Dataset) -> Dataset:
    """The graph with these self-loops in its data."""
    (source, destination), numbers = wanted(graph, "mean")
    order = np.lexsort((source, destination))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(destination, minlength=graph.num_nodes))])
    return dataclasses.replace(
        graph, indptr=indptr, indices=source[order].astype(np.int32), columns=EdgeColumns.of({ATTR: numbers[order]})
    )


@pytest.mark.parametrize("way", [{}, {"mfg": True}, {"servers": 2}])
def test_losses(way: dict[str, Any]) -> None:
    """As those of a graph that has such self-loops from the start."""
    graph, model = GRAPHS[WIDE], cases.model_config("gin", norm="layer", num_layers=2)
    want = cases.curve(Group.single(), cases.run_config(model, epochs=2), with_loops(graph))
    config = cases.run_config(model, epochs=2, partitioner="random", world=4, **way)
    looped = {fill: dataclasses.replace(config.dataset, add_self_loops=True, loop_features=fill) for fill in ("mean", "zeros")}
    got, other = (pool(4)(cases.curve, dataclasses.replace(config, dataset=looped[fill]), graph)[0] for fill in looped)
    assert_same_curve(got["losses"], want["losses"], "fp64")
    assert not np.allclose(other["losses"], want["losses"], rtol=1e-4)
