"""Whose rows a table's rows are: original ids of nodes, and of the ends of edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from sargnn.comm.group import Group
from sargnn.modules.rows import Rows


class Places(Protocol):
    """What knows the rows of the graph at hand."""

    group: Group

    def node_ids(self, rows: Rows) -> Tensor:
        """int64 [N], the original ids of these rows; those of a later level are the first of an earlier one's."""

    def edge_ids(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """int64 [E] each, the original ids of the edges' sources and destinations."""


def first_node_ids(places: Places, rows: Rows, count: int) -> Tensor:
    """The original ids of the first ``count`` rows, int64 [count].

    Rows that were made of those of an earlier level may be more than those of the level that they are noted for.
    """
    for level in range(rows.level, -1, -1):
        ids = places.node_ids(replace(rows, level=level))
        if count <= len(ids):
            return ids[:count]
    raise AssertionError(f"{count} rows of {rows}, which has fewer")
