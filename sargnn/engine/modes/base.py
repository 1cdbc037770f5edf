"""What a training mode is: when remote rows are fetched and what survives until backward. It knows no mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sargnn.comm.exchange import Exchange
from sargnn.engine.reducers.base import Fold, Reducer, Tensors
from sargnn.shards.load import Layout
from sargnn.shards.plan import LayerPlan


@dataclass(frozen=True)
class Call:
    """One aggregation: who computes what on which graph.

    Attributes:
        reducer: the mathematics. fold: what it works with: plan, kernel operation, memory, profile.
        exchange: how rows travel.
        exchanged_needs_grad: whether gradients of the exchanged rows are wanted at all (not those of constant features).
        training: whether a backward pass will follow.
    """

    reducer: Reducer
    fold: Fold
    exchange: Exchange
    exchanged_needs_grad: bool
    training: bool

    @property
    def plan(self) -> LayerPlan:
        """The layer's graph."""
        return self.fold.plan


class Mode(ABC):
    """A training mode."""

    name: str
    layout: Layout
    """Which shards the plan must hold."""
    plain_autograd: bool = False
    """Whether it needs operators that autograd differentiates by itself, instead of a kernel's own forward and backward."""

    is_baseline: bool = False
    """Whether it stands for what a user has without this project: stock operators, no cached aggregates of constant rows."""

    fetches_again: bool = False
    """Whether it drops rows that backward needs and fetches them again: memory comes before time."""

    reads_exchanged_in_backward: bool = True
    """Whether a case-2 reducer's backward pass needs the own rows as they were exchanged."""

    @abstractmethod
    def run(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        """The outputs, differentiable in all three tuples."""

    def fetches(self, reducer: Reducer) -> int:
        """How many times a training step of one layer sends the rows that peers need."""
        return 1

    def kept_rows(self, plan: LayerPlan) -> int:
        """Rows that a case-2 reducer's source rows occupy from forward to backward, or while backward fetches them."""
        return plan.num_rows + plan.halo_rows

    def wire_bytes(
        self, plan: LayerPlan, reducer: Reducer, row_bytes: int, *, exchanged_needs_grad: bool
    ) -> int:  # fmt: skip
        """Bytes that this rank sends in a training step of one layer: its rows forward, its halo rows' gradients backward.

        Args:
            row_bytes: of a row of all that travels (``Reducer.row_bytes``).
        """
        rows = self.fetches(reducer) * plan.lists.sent_rows
        gradients = plan.halo_rows if exchanged_needs_grad else 0
        return (rows + gradients) * row_bytes
