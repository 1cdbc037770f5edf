"""What a training mode is: when remote rows are fetched and what survives until backward. It knows no mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from sargnn.comm.exchange import Exchange
from sargnn.engine.reducers.base import Fold, Reducer, Tensors
from sargnn.engine.reducers.partial import WithPartials
from sargnn.shards.cover import Costs
from sargnn.shards.load import Layout
from sargnn.shards.plan import LayerPlan


@dataclass(frozen=True)
class Call:
    """One aggregation: who computes what on which graph.

    Attributes:
        reducer: the mathematics. fold: what it works with: plan, kernel operation, memory, profile.
        exchange: how rows travel.
        widths: F_t of the exchanged tensors.
        exchanged_needs_grad: whether gradients of the exchanged rows are wanted at all (not those of constant features).
        training: whether a backward pass will follow.
    """

    reducer: Reducer
    fold: Fold
    exchange: Exchange
    widths: tuple[int, ...]
    exchanged_needs_grad: bool
    training: bool

    @property
    def plan(self) -> LayerPlan:
        """The layer's graph."""
        return self.fold.plan


@dataclass(frozen=True)
class Held:
    """Bytes that a mode holds for a row of a layer.

    Attributes:
        kept: until backward is over. forward: only while the layer aggregates. backward: while that goes backward, where the
            rows' gradients are wanted.
    """

    kept: int = 0
    forward: int = 0
    backward: int = 0


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

    keeps_scores: bool = False
    """Whether attention's scores stay from forward to backward; set where ``mode.keep=all`` is asked for."""

    takes_partials: bool = False
    """Whether it has edges of ``LayerPlan.partials`` aggregated where their sources are."""

    def __init_subclass__(cls) -> None:
        """Who says anew what happens forward or backward says also whether that knows partial results."""
        super().__init_subclass__()
        if {"run", "forward", "backward"} & set(vars(cls)) and "takes_partials" not in vars(cls):
            cls.takes_partials = False

    @abstractmethod
    def run(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        """The outputs, differentiable in all three tuples."""

    def fetches(self, reducer: Reducer) -> int:
        """How many times a training step of one layer sends the rows that peers need."""
        return 1

    def halo_bytes(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> Held:
        """What a halo row of a layer holds beside the exchange's buffers.

        Args:
            row_bytes: of a row of all exchanged tensors. typed: of a typed graph.
        """
        return Held()

    def own_bytes(self, reducer: Reducer, row_bytes: int) -> Held:
        """What a copy of an own row holds where there are halo rows."""
        return Held()

    def kept_rows(self, plan: LayerPlan) -> int:
        """Rows that a case-2 reducer's source rows occupy from forward to backward, or while backward fetches them."""
        return plan.num_rows + plan.halo_rows

    def wire_bytes(
        self,
        plan: LayerPlan,
        reducer: Reducer,
        widths: tuple[int, ...],
        rows: torch.dtype,
        wire: torch.dtype | None = None,
        *,
        exchanged_needs_grad: bool,
    ) -> int:
        """Bytes that this rank sends in a training step of one layer: its rows forward, its halo rows' gradients backward, and
        for partial results requests and answers in both.

        Args:
            widths, rows, wire: as ``Reducer.row_bytes``.
        """
        row_bytes = reducer.row_bytes(widths, rows, wire)
        sent = self.fetches(reducer) * plan.lists.sent_rows
        gradients = plan.halo_rows if exchanged_needs_grad else 0
        total = (sent + gradients) * row_bytes
        if plan.partials is not None:
            forward, backward = self.partial_bytes(reducer, widths, rows, wire, exchanged_needs_grad=exchanged_needs_grad)
            lists = plan.partials.lists
            total += lists.all_wanted * (forward[0] + backward[0]) + lists.all_served * (forward[1] + backward[1])
        return total

    def costs(
        self,
        reducer: Reducer,
        widths: tuple[int, ...],
        rows: torch.dtype,
        wire: torch.dtype | None = None,
        *,
        exchanged_needs_grad: bool,
    ) -> Costs | None:
        """What a source row that travels and a partial result cost in a training step; None where there are no partial results.

        Args:
            widths, rows, wire: as ``Reducer.row_bytes``.
        """
        if not self.takes_partials or not isinstance(reducer, WithPartials):
            return None
        row = reducer.row_bytes(widths, rows, wire)
        passes = self.partial_bytes(reducer, widths, rows, wire, exchanged_needs_grad=exchanged_needs_grad)
        return Costs(
            source=(self.fetches(reducer) + exchanged_needs_grad) * row,
            destination=sum(sum(pass_bytes) for pass_bytes in passes),
            largest=max(max(pass_bytes) for pass_bytes in passes),
            row=row,
            ranked=reducer.ranks_winners,
        )

    def partial_bytes(
        self,
        reducer: Reducer,
        widths: tuple[int, ...],
        rows: torch.dtype,
        wire: torch.dtype | None,
        *,
        exchanged_needs_grad: bool,
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Forward and backward the bytes of a request and of an answer."""
        assert isinstance(reducer, WithPartials)
        backward = exchanged_needs_grad or reducer.needs_src_in_backward
        asked, answered, gradients, returned = reducer.partial_columns(widths, rows).row_bytes(wire)
        return (asked, answered), (gradients, returned) if backward else (0, 0)
