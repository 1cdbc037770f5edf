"""Groups of targets: what each way of making them promises."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import ConfigError
from sargnn.graph.schema import SPLITS
from sargnn.partition.cut import parts_of
from sargnn.plan import GROUPINGS
from sargnn.plan.target_groups import TargetRows, group_targets, redundancy_graph
from tests.graphs import assign, nasty_graph, typed_graph

_BUFFER = 1 << 30


def targets_of(rank: int = 0, world: int = 2, *, typed: bool = False) -> TargetRows:
    dataset = typed_graph() if typed else nasty_graph()
    part = list(parts_of(dataset, assign(dataset, "random", world), world))[rank]
    return TargetRows(part, rank, np.flatnonzero(part.split == SPLITS["train"]), 3, _BUFFER)


def reads(targets: TargetRows) -> np.ndarray:
    """bool [W, N + H], which rows each target reads but itself."""
    found = np.zeros((len(targets.rows), targets.num_vertices), bool)
    src, dst = targets.edges()
    for source, destination in zip(src, dst, strict=True):
        place = np.flatnonzero(targets.rows == destination)
        if len(place) and source != destination:
            found[place[0], source] = True
    return found


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_every_target_has_a_group_and_no_group_is_empty(by: str, count: int, typed: bool) -> None:
    targets = targets_of(typed=typed)
    groups = group_targets(by, targets, count)
    assert groups.shape == targets.rows.shape and set(groups.tolist()) == set(range(count))
    np.testing.assert_array_equal(groups, group_targets(by, targets_of(typed=typed), count))  # the same every time


@pytest.mark.parametrize("by", GROUPINGS)
def test_no_more_groups_than_targets(by: str) -> None:
    targets = targets_of()
    few = dataclasses.replace(targets, rows=targets.rows[:2])
    assert group_targets(by, few, 2).tolist() == [0, 1]
    assert group_targets(by, dataclasses.replace(targets, rows=targets.rows[:0]), 4).tolist() == []


def test_the_redundancy_graph_is_what_its_equation_says() -> None:
    """C = A^T W A without a diagonal, w = 1 / (d - 1), times the factor that makes whole numbers."""
    targets = targets_of()
    read = reads(targets)
    degrees = read.sum(0)
    weights = np.where(degrees > 1, 1000 / np.maximum(degrees - 1, 1), 0)
    want = (read * weights) @ read.T
    np.fill_diagonal(want, 0)
    want = np.where(want > 0, np.maximum(np.rint(want), 1), 0)
    found = redundancy_graph(targets).toarray()
    np.testing.assert_allclose(found, want, atol=1)
    assert (found == found.T).all() and found.max() > 500


def test_hubs_are_left_out_where_the_buffer_is_small() -> None:
    targets = targets_of()
    degrees = reads(targets).sum(0)
    small = dataclasses.replace(targets_of(), buffer_bytes=100 * int((degrees * (degrees - 1)).sum()) // 2)
    whole, some = redundancy_graph(targets), redundancy_graph(small)
    assert 0 < some.nnz < whole.nnz


@pytest.mark.parametrize("by", ["star", "reg"])
def test_common_neighbours_come_together(by: str) -> None:
    """Targets of two halves of a graph that share no source are told apart."""
    dataset = nasty_graph()
    (part,) = parts_of(dataset, np.zeros(dataset.num_nodes, np.int32), 1)
    edges = [(source, target) for half in (0, 1) for target in range(20) for source in range(100 + 10 * half, 110 + 10 * half)]
    places = np.array(
        [(source, 2 * target + half) for (source, target), half in zip(edges, np.repeat([0, 1], 200), strict=True)]
    )
    order = np.argsort(places[:, 1], kind="stable")
    part = dataclasses.replace(
        part, edge_src=places[order, 0].astype(np.int32), edge_dst=places[order, 1].astype(np.int32),
        edge_offsets=np.array([0, len(places)]), in_degrees=np.bincount(places[:, 1], minlength=len(part.node_ids)),
    )  # fmt: skip
    groups = group_targets(by, TargetRows(part, 0, np.arange(40), 0, _BUFFER), 2)
    assert len(set(groups[::2])) == len(set(groups[1::2])) == 1 and groups[0] != groups[1]


def test_a_grouping_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n\ndef odd(targets, count):\n    return np.arange(len(targets.rows)) % count\n\n"
        "def wrong(targets, count):\n    return np.full(len(targets.rows), count)\n"
    )
    targets = targets_of()
    assert group_targets(f"{file}:odd", targets, 3).tolist() == [k % 3 for k in range(len(targets.rows))]
    with pytest.raises(ConfigError, match="each target's group"):
        group_targets(f"{file}:wrong", targets, 3)
