"""What a training mode is: when remote rows are fetched and what survives until backward. It knows no mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sargnn.comm.exchange import Exchange
from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.kernels.base import Kernel
from sargnn.shards.load import Layout
from sargnn.shards.plan import LayerPlan


@dataclass(frozen=True)
class Call:
    """One aggregation: who computes what on which graph.

    Attributes:
        sent_needs_grad: whether errors of the sent rows are wanted at all (not those of constant features).
        training: whether a backward pass will follow.
    """

    plan: LayerPlan
    reducer: Reducer
    kernel: Kernel
    exchange: Exchange
    sent_needs_grad: bool
    training: bool


class Mode(ABC):
    """A training mode."""

    name: str
    layout: Layout
    """Which shards the plan must hold."""
    kernels: tuple[str, ...] = ("fused", "dgl", "reference")
    """Which kernels may run in it."""

    @abstractmethod
    def run(self, call: Call, sent: Tensors, local: Tensors, params: Tensors) -> Tensors:
        """The outputs, differentiable in all three tuples."""

    def row_exchanges(self, reducer: Reducer, sent_needs_grad: bool) -> int:
        """How many times one training step of one layer sends every halo row (or its error)."""
        return 2 if sent_needs_grad else 1
