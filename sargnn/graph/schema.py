"""Node types and relations of a graph, and what its nodes are labelled with.

Nodes are numbered type by type, so a type is a range of original ids; a homogeneous graph has one type and one relation.
Draws and partitions go by these ids, whatever numbers the nodes have within their types.

What is predicted is one class of each node, several labels at once, or numbers. The dtype of a dataset's labels says which:

| task | labels | a node without any | outputs C |
|---|---|---|---|
| ``classes`` | int64 [N], the class | ``UNLABELLED`` | number of classes |
| ``multilabel`` | int8 [N, C], 0 or 1; -1: not known | a row of -1 | number of labels |
| ``regression`` | float32 [N, C]; nan: not known | a row of nan | number of values |

Letters: N nodes, T node types, R relations, C outputs of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np

from sargnn.config.choices import Task

UNLABELLED = -1
"""The label of a node that has none."""
SPLITS = {"train": 1, "valid": 2, "test": 3}
"""Values of ``Dataset.split``; 0 is none of them."""
MAX_RELATIONS = 65_536
"""Draws leave two bytes for them (``rng``)."""
LABEL_DTYPES: dict[Task, np.dtype] = {
    "classes": np.dtype(np.int64),
    "multilabel": np.dtype(np.int8),
    "regression": np.dtype(np.float32),
}


def relation_dtype(relations: int) -> np.dtype:
    """Of the relation of each edge or pair, where there are so many: one byte, or two."""
    return np.dtype(np.uint8 if relations <= 256 else np.uint16)


class Relation(NamedTuple):
    source: int
    name: str
    destination: int


@dataclass(frozen=True)
class Schema:
    """T types, of which type t owns the original ids ``[offsets[t], offsets[t + 1])``, and R relations."""

    node_types: tuple[str, ...]
    offsets: tuple[int, ...]
    relations: tuple[Relation, ...]

    @classmethod
    def homogeneous(cls, num_nodes: int) -> Schema:
        return cls(("node",), (0, num_nodes), (Relation(0, "edge", 0),))

    @property
    def typed(self) -> bool:
        return len(self.node_types) > 1 or len(self.relations) > 1

    @property
    def num_nodes(self) -> int:
        return self.offsets[-1]

    def count(self, node_type: int) -> int:
        return self.offsets[node_type + 1] - self.offsets[node_type]

    def types_of(self, ids: np.ndarray) -> np.ndarray:
        """The type of each original id, int64."""
        return np.searchsorted(np.asarray(self.offsets), ids, side="right") - 1

    def bounds(self, ids: np.ndarray) -> tuple[int, ...]:
        """T + 1 positions: type t is ``ids[bounds[t]:bounds[t + 1]]``, for ids sorted by type."""
        counts = np.bincount(self.types_of(ids), minlength=len(self.node_types))
        return (0, *np.cumsum(counts).tolist())

    def to_json(self) -> dict[str, Any]:
        relations = [list(relation) for relation in self.relations]
        return {"node_types": list(self.node_types), "offsets": list(self.offsets), "relations": relations}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Schema:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for content that is no schema."""
        types, offsets = tuple(content["node_types"]), tuple(content["offsets"])
        relations = tuple(Relation(*entry) for entry in content["relations"])
        names = [*types, *(relation.name for relation in relations)]
        ends = [end for relation in relations for end in (relation.source, relation.destination)]
        if not all(type(name) is str for name in names) or not all(type(number) is int for number in [*offsets, *ends]):
            raise TypeError("names must be texts, and numbers whole")
        ascending = all(a <= b for a, b in zip(offsets, offsets[1:], strict=False))
        if not types or len(offsets) != len(types) + 1 or offsets[0] != 0 or not ascending:
            raise ValueError("offsets must ascend from 0, one more of them than node types")
        if not 1 <= len(relations) <= MAX_RELATIONS or not all(0 <= end < len(types) for end in ends):
            raise ValueError("relations must join node types")
        return cls(types, offsets, relations)


def task_of(labels: np.ndarray) -> Task:
    """Told by their dtype. Raises ``KeyError`` where there is none."""
    return {LABEL_DTYPES[task]: task for task in get_args(Task)}[labels.dtype]


def label_form(dtype: np.dtype, num_classes: int) -> tuple[np.dtype, tuple[int, ...]]:
    """What labels that a store names with this dtype must be: a task's dtype (of no task: classes'), and a node's shape."""
    if dtype not in LABEL_DTYPES.values() or dtype == LABEL_DTYPES["classes"]:
        return LABEL_DTYPES["classes"], ()
    return dtype, (num_classes,)


def known_entries(labels: np.ndarray) -> np.ndarray:
    """bool, of the labels' shape."""
    return np.isfinite(labels) if labels.dtype.kind == "f" else labels > UNLABELLED


def has_label(labels: np.ndarray) -> np.ndarray:
    """bool [N]: nodes of which at least one label is known."""
    known = known_entries(labels)
    return known if known.ndim == 1 else np.any(known, axis=1)


def zero_labels(task: Task, num_nodes: int, num_outputs: int) -> np.ndarray:
    """Where only their form counts."""
    return np.zeros((num_nodes,) if task == "classes" else (num_nodes, num_outputs), LABEL_DTYPES[task])
