"""Rows of nodes of two types and of edges, without a graph, for tests of the calls in a module."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.modules.calls import StockCalls
from sargnn.modules.session import Places
from sargnn.modules.tag import Count, Rows, tagged

NODES, EDGES = Rows("nodes"), Rows("edges")


class FakePlaces(Places):
    """``ids[k]`` of node type k on level 0; each later level has half of them, the first ones. total: of all workers' rows."""

    def __init__(
        self, *ids: Tensor, edges: tuple[Tensor, Tensor] | None = None, group: Group | None = None, total: int | None = None
    ) -> None:
        super().__init__(group or Group.single(), [])
        self._ids, self._edges, self._total = ids, edges, total

    def count(self, rows: Rows, own: int) -> Count:
        return Count(own, own if self._total is None else self._total, rows.kind, rows)

    def node_ids(self, rows: Rows) -> Tensor:
        ids = self._ids[rows.type]
        return ids[: len(ids) >> rows.level]

    def edge_ids(self, rows: Rows) -> tuple[Tensor, Tensor]:
        assert self._edges is not None
        return self._edges


def calls_on(
    *ids: Tensor, mode: str = "sar", group: Group | None = None, edges: tuple[Tensor, Tensor] | None = None,
    path: str | None = None, total: int | None = None,
) -> StockCalls:  # fmt: skip
    """``StockCalls`` of an engine with seed 3, in epoch 5."""
    group = group or Group.single()
    engine = Engine(group, EngineSettings(mode=mode, seed=3, dtype=torch.float64))
    engine.epoch = 5
    return StockCalls(engine, FakePlaces(*ids, edges=edges, group=group, total=total), path=path)


def rows(*shape: int, type: int = 0, level: int = 0, seed: int = 0, grad: bool = False) -> Tensor:
    """Node rows, fp64."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tagged(x.requires_grad_(grad), Rows("nodes", type, level))
