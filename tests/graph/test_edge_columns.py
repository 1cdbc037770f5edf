"""Columns of edges: taken, cut, joined, stored, in memory or mapped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.errors import StoreError
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, EdgeColumns, join, open_columns
from sargnn.graph.store import Store, StoreWriter

EDGES = 50
WIDE = np.arange(EDGES * 3, dtype=np.float32).reshape(EDGES, 3)
ARRAYS: dict[str, Any] = {WEIGHT: np.arange(EDGES, dtype=np.float32), ATTR: WIDE, "kind": np.arange(EDGES, dtype=np.uint8)}


def stored(folder: Path) -> EdgeColumns:
    """The columns as they come out of a store."""
    with StoreWriter(folder, "test", 1) as writer:
        EdgeColumns.of(ARRAYS).save(writer, "part_000/")
    return open_columns(Store(folder, "test", 1), list(ARRAYS), EDGES, "part_000/")


@pytest.fixture(params=["memory", "mapped"])
def columns(request: pytest.FixtureRequest, tmp_path: Path) -> EdgeColumns:
    return EdgeColumns.of(ARRAYS) if request.param == "memory" else stored(tmp_path / "store")


def check(columns: EdgeColumns, edges: np.ndarray) -> None:
    """Every column has these edges' rows; an added one's are 1 where it is a weight, else 0."""
    for name, array in ARRAYS.items():
        wanted = array[edges]
        wanted[edges < 0] = name == WEIGHT
        numbers = columns[name]
        assert isinstance(numbers, np.ndarray) and numbers.dtype == array.dtype
        np.testing.assert_array_equal(numbers, wanted)


def test_edges_are_taken_and_cut_in_any_order(columns: EdgeColumns) -> None:
    rng = np.random.default_rng(0)
    every, order = np.arange(EDGES), rng.integers(EDGES, size=70)
    check(columns, every)
    check(columns.take(order), order)
    check(columns.take(every % 3 == 0), every[::3])
    check(columns.run(slice(5, 30)), every[5:30])
    check(columns.run(slice(5, 30)).run(slice(3, 9)), every[8:14])
    check(columns.run(slice(5, 30)).take(order % 25), 5 + order % 25)
    check(columns.take(order).run(slice(10, 20)), order[10:20])
    check(columns.take(order).take(order % 70), order[order % 70])
    check(columns.runs([slice(3, 5), slice(40, 50), slice(0, 0)]), np.r_[3:5, 40:50])
    check(columns.take(order).runs([slice(3, 5), slice(1, 9)]), order[np.r_[3:5, 1:9]])
    check(columns.take(np.zeros(0, np.int64)), np.zeros(0, np.int64))
    pieces = [piece[ATTR] for piece in columns.take(order).pieces(16)]
    assert [len(piece) for piece in pieces] == [16, 16, 16, 16, 6]


def test_added_edges(columns: EdgeColumns) -> None:
    order = np.array([3, -1, 7, -1])
    check(columns.take(order), order)
    check(columns.take(order).take(np.array([1, 0, -1])), np.array([-1, 3, -1]))
    check(columns.run(slice(2, 9)).take(np.array([-1, 0])), np.array([-1, 2]))
    check(columns.run(slice(0, 0)).take(np.array([-1, -1])), np.array([-1, -1]))
    check(EdgeColumns.of({name: array[:0] for name, array in ARRAYS.items()}).take(np.array([-1])), np.array([-1]))


def test_wide_columns_are_read_when_asked_for(columns: EdgeColumns) -> None:
    taken = columns.take(np.arange(0, EDGES, 2))
    assert taken.columns[ATTR].array is columns.columns[ATTR].array
    order = taken.columns[ATTR].order
    assert isinstance(order, np.ndarray) and order.dtype == np.int32
    assert taken.columns[WEIGHT].order is None and len(taken.columns[WEIGHT].array) == EDGES // 2


def test_pickled_they_hold_their_own_edges_only(columns: EdgeColumns) -> None:
    taken = pickle.loads(pickle.dumps(columns.take(np.array([4, 2]))))
    check(taken, np.array([4, 2]))
    assert len(taken.columns[ATTR].array) == 2


def test_blocks_have_narrow_ones_as_tensors(columns: EdgeColumns) -> None:
    block = columns.run(slice(10, 20)).on(torch.device("cpu"), torch.bfloat16)
    weight, like = block[WEIGHT], torch.zeros(1, dtype=torch.float64)
    assert isinstance(weight, torch.Tensor) and weight.dtype == torch.bfloat16
    assert block["kind"].dtype == torch.uint8  # whole numbers stay
    assert block.tensor(ATTR, like).tolist() == WIDE[10:20].tolist()
    assert block.tensor(ATTR, like).dtype == torch.float64 and block.tensor("kind", like).dtype == torch.uint8
    kept = block.take(torch.arange(10) % 2 == 0)
    assert kept[WEIGHT].tolist() == [10, 12, 14, 16, 18] and kept[ATTR].tolist() == WIDE[10:20:2].tolist()
    added = block.take(torch.tensor([3, -1, 0]))
    assert added[WEIGHT].tolist() == [13, 1, 10] and added["kind"].tolist() == [13, 0, 10]
    assert added[ATTR].tolist() == [WIDE[13].tolist(), [0, 0, 0], WIDE[10].tolist()]
    assert block.take(torch.zeros(10, dtype=torch.bool)).take(torch.tensor([-1, -1]))[WEIGHT].tolist() == [1, 1]


def test_joined_graphs() -> None:
    one, other = EdgeColumns.of(ARRAYS), EdgeColumns.of({"kind": np.ones(2, np.uint8)})
    joined = join([other, one, NO_COLUMNS], [2, EDGES, 1])
    assert joined[WEIGHT].tolist() == [1, 1, *range(EDGES), 1]
    assert joined["kind"].tolist() == [1, 1, *range(EDGES), 0]
    assert joined[ATTR][:2].tolist() == [[0, 0, 0]] * 2 and joined[ATTR].dtype == np.float32
    assert not join([NO_COLUMNS, NO_COLUMNS], [3, 4])


def test_joined_runs_of_one_table_stay_where_they_are(columns: EdgeColumns) -> None:
    some = np.array([7, -1, 3])
    joined = join([columns.run(slice(20, 25)), columns.take(some), columns], [5, 3, EDGES])
    check(joined, np.concatenate([np.arange(20, 25), some, np.arange(EDGES)]))
    assert joined.columns[ATTR].array is columns.columns[ATTR].array


def test_none() -> None:
    assert not NO_COLUMNS and NO_COLUMNS.weight is None and WEIGHT not in NO_COLUMNS
    assert not NO_COLUMNS.take(np.arange(3)) and not NO_COLUMNS.runs([slice(0, 2), slice(4, 5)]) and not NO_COLUMNS.forms
    assert [*NO_COLUMNS.pieces(4)] == []
    assert EdgeColumns.of(ARRAYS).only([WEIGHT]).columns.keys() == {WEIGHT}


def test_a_column_has_a_file_of_its_own(tmp_path: Path) -> None:
    columns = stored(tmp_path / "store")
    assert sorted(file.name for file in (tmp_path / "store" / "part_000").iterdir()) == [
        "edge_attr.npy",
        "edge_kind.npy",
        "edge_weight.npy",
    ]
    assert columns.forms[ATTR] == np.dtype((np.float32, (3,)))
    store = Store(tmp_path / "store", "test", 1)
    for names, count in (([ATTR], EDGES + 1), (["length"], EDGES)):
        with pytest.raises(StoreError):
            open_columns(store, names, count, "part_000/")
    with pytest.raises(ValueError, match="src"):
        EdgeColumns.of({"src": WIDE})
