"""What a training mode is: when remote rows are fetched and what survives until backward. It knows no mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from sargnn.comm.exchange import Exchange
from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Fold, Reducer, Tensors
from sargnn.shards.load import Layout
from sargnn.shards.plan import LayerPlan
from sargnn.spans import installed


@dataclass(frozen=True)
class Call:
    """One aggregation: who computes what on which graph.

    Attributes:
        sent_needs_grad: whether errors of the sent rows are wanted at all (not those of constant features).
        training: whether a backward pass will follow.
    """

    plan: LayerPlan
    reducer: Reducer
    operation: Any
    exchange: Exchange
    sent_needs_grad: bool
    training: bool

    @property
    def fold(self) -> Fold[Any]:
        return Fold(self.plan, self.operation, POOL, installed())


class Mode(ABC):
    """A training mode."""

    name: str
    layout: Layout
    """Which shards the plan must hold."""
    kernels: tuple[str, ...] = ("fused", "dgl", "reference")
    """Which kernels may run in it."""

    lean: bool = True
    """Whether fused node-wise operators and cached aggregates of constant rows may be used with it: not in a baseline."""

    reads_sent_in_backward: bool = True
    """Whether a case-2 reducer's backward pass needs the own rows as they were sent."""

    @abstractmethod
    def run(self, call: Call, sent: Tensors, local: Tensors, params: Tensors) -> Tensors:
        """The outputs, differentiable in all three tuples."""

    def fetches(self, reducer: Reducer) -> int:
        """How many times a training step of one layer sends the rows that peers need."""
        return 1

    def kept_rows(self, plan: LayerPlan) -> int:
        """Rows that a case-2 reducer's source rows occupy from forward to backward, or while backward fetches them."""
        return plan.num_rows + plan.halo_rows

    def wire_bytes(
        self, plan: LayerPlan, reducer: Reducer, widths: tuple[int, ...], itemsize: int, *, sent_needs_grad: bool
    ) -> int:
        """Bytes that this rank sends in a training step of one layer: its rows forward, its halo rows' errors backward."""
        rows = self.fetches(reducer) * plan.lists.sent_rows
        errors = plan.halo_rows if sent_needs_grad else 0
        return (rows + errors) * sum(widths) * itemsize
