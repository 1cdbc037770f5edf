"""Node types and relations of a graph.

Nodes are numbered type by type, so a type is a range of original ids; a homogeneous graph has one type and one relation.
Draws and partitions go by these ids, whatever numbers the nodes have within their types.

Letters: N nodes, T node types, R relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

UNLABELLED = -1
"""The label of a node that has none."""
SPLITS = {"train": 1, "valid": 2, "test": 3}
"""Values of ``Dataset.split``; 0 is none of them."""
MAX_RELATIONS = 256
"""Relations are stored in one byte each, and draws leave one byte for them."""


class Relation(NamedTuple):
    """What an edge means: its name and the types (indices) of its two ends."""

    source: int
    name: str
    destination: int


@dataclass(frozen=True)
class Schema:
    """The types of a graph.

    Attributes:
        node_types: T names.
        offsets: T + 1; type t owns the original ids ``[offsets[t], offsets[t + 1])``.
        relations: R relations.
    """

    node_types: tuple[str, ...]
    offsets: tuple[int, ...]
    relations: tuple[Relation, ...]

    @classmethod
    def homogeneous(cls, num_nodes: int) -> Schema:
        """One type, one relation."""
        return cls(("node",), (0, num_nodes), (Relation(0, "edge", 0),))

    @property
    def typed(self) -> bool:
        """Whether there is more than one type or relation."""
        return len(self.node_types) > 1 or len(self.relations) > 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.offsets[-1]

    def count(self, node_type: int) -> int:
        """How many nodes a type has."""
        return self.offsets[node_type + 1] - self.offsets[node_type]

    def types_of(self, ids: np.ndarray) -> np.ndarray:
        """The type of each original id, int64."""
        return np.searchsorted(np.asarray(self.offsets), ids, side="right") - 1

    def bounds(self, ids: np.ndarray) -> tuple[int, ...]:
        """T + 1 positions: type t is ``ids[bounds[t]:bounds[t + 1]]``, for ids sorted by type."""
        counts = np.bincount(self.types_of(ids), minlength=len(self.node_types))
        return (0, *np.cumsum(counts).tolist())

    def to_json(self) -> dict[str, Any]:
        """For a manifest."""
        relations = [list(relation) for relation in self.relations]
        return {"node_types": list(self.node_types), "offsets": list(self.offsets), "relations": relations}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Schema:
        """The inverse of ``to_json``.

        Raises:
            KeyError, TypeError, ValueError: content that is no schema.
        """
        types, offsets = tuple(content["node_types"]), tuple(content["offsets"])
        relations = tuple(Relation(*entry) for entry in content["relations"])
        names = [*types, *(relation.name for relation in relations)]
        numbers = [*offsets, *(end for relation in relations for end in (relation.source, relation.destination))]
        if not all(type(name) is str for name in names) or not all(type(number) is int for number in numbers):
            raise TypeError("names must be texts, and numbers whole")
        ends = [end for relation in relations for end in (relation.source, relation.destination)]
        ascending = all(a <= b for a, b in zip(offsets, offsets[1:], strict=False))
        if not types or len(offsets) != len(types) + 1 or offsets[0] != 0 or not ascending:
            raise ValueError("offsets must ascend from 0, one more of them than node types")
        if not 1 <= len(relations) <= MAX_RELATIONS or not all(0 <= end < len(types) for end in ends):
            raise ValueError("relations must join node types")
        return cls(types, offsets, relations)
