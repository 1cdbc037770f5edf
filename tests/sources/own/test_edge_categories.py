"""Whole numbers on edges that are categories: ``dataset.edge_categories`` has a learned row for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.edge_columns import ATTR
from tests.sources.own.given import Arrays
from tests.sources.own.small import GRAPH, N, changed, of_object
from tests.sources.stores import write_and_read

NUMBERS = np.array([[2, 5], [0, -1], [1, 7], [2, 0], [0, 9]])
WANTED = np.concatenate([np.eye(3)[NUMBERS[:, 0]], NUMBERS[:, 1:]], 1).astype(np.float32)
"""The first column is one of three categories."""


def attr_of(arrays: Arrays, buffer_bytes: int = 10**9, **settings: Any) -> np.ndarray:
    return np.asarray(write_and_read(of_object(arrays, **settings), buffer_bytes).columns[ATTR])


@pytest.mark.parametrize("buffer_bytes", [1, 10**9])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_a_column_for_each_category(dtype: type, buffer_bytes: int) -> None:
    given = changed(edge_attr=NUMBERS.astype(dtype))
    assert np.array_equal(attr_of(given, buffer_bytes, edge_categories=[3, 0]), WANTED)
    assert np.array_equal(attr_of(given, buffer_bytes), NUMBERS)


def test_relations() -> None:
    """Each has its own edges, and all have the same columns; inverse edges are of their edge's category."""
    edges = {("a", "to", "b"): GRAPH["edge_index"], ("b", "of", "a"): GRAPH["edge_index"][:, :2]}
    nodes = {"y": {"a": np.zeros(N, int)}, "train_mask": {"a": np.ones(N, bool)}, "num_nodes": {"a": N, "b": N}}
    given: Arrays = {"edge_index": edges, "edge_attr": {("a", "to", "b"): NUMBERS}, **nodes}
    dataset = write_and_read(of_object(given, edge_categories=[3, 0], add_inverse_edges=True))
    assert dataset.relation is not None
    names, numbers = [relation.name for relation in dataset.schema.relations], np.asarray(dataset.columns[ATTR])
    assert len(names) == 4
    for relation, name in enumerate(names):
        wanted = WANTED if "to" in name.split("_") or name == "to" else np.zeros((2, 4))
        assert np.array_equal(numbers[dataset.relation == relation], wanted), name


def test_they_decide_the_content() -> None:
    given = changed(edge_attr=NUMBERS)
    identities = [of_object(given, edge_categories=sizes).identity() for sizes in (None, [3, 0], [4, 0])]
    assert len({str(identity) for identity in identities}) == 3
    assert identities[0] == of_object(given, edge_categories=[]).identity()


@pytest.mark.parametrize(
    ("sizes", "numbers", "words"),
    [
        ([2, 0], NUMBERS, ["no category", "edge 0 (counted from 0), feature 1", "given:   2", "0 to 1"]),
        ([3, 10], NUMBERS, ["edge 1 (", "feature 2", "given:   -1", "0 to 9"]),
        ([3, 0], NUMBERS + 0.5, ["edge 0 (", "feature 1", "given:   2.5", "whole numbers"]),
        ([3], NUMBERS, ["edge features", "[3], 1 columns", "2 entries"]),
        ([3], None, ["edge features", "null: it has none"]),
    ],
)
def test_wrong_ones(sizes: list[int], numbers: np.ndarray | None, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        attr_of(changed(edge_attr=numbers), edge_categories=sizes)
    assert all(word in str(caught.value) for word in words), str(caught.value)
