"""What a training mode is: when remote rows are fetched and what survives until backward. It knows no mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from sargnn.comm.exchange import Exchange
from sargnn.engine.grouped import Outputs
from sargnn.engine.reducers.base import Fold, Part, Reducer, Tensors, WithPartials
from sargnn.plan.cover import Costs
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import Layout


@dataclass(frozen=True)
class Call:
    """One aggregation: who computes what on which graph.

    Attributes:
        fold: what the reducer works with: plan, kernel operation, memory, profile.
        widths: F_t of the exchanged tensors.
        exchanged_needs_grad: whether gradients of the exchanged rows are wanted at all (not those of constant features).
        training: whether a backward pass will follow.
        given: nobody reads or writes to the exchanged rows afterwards, but the backward pass.
        parts: the groups of columns that it is made in, one after the other; () : all at once.
        outputs: where these leave what they give.
    """

    reducer: Reducer
    fold: Fold
    exchange: Exchange
    widths: tuple[int, ...]
    exchanged_needs_grad: bool
    training: bool
    given: bool = False
    parts: tuple[Part, ...] = ()
    outputs: Outputs | None = None

    @property
    def plan(self) -> LayerPlan:
        return self.fold.plan


@dataclass(frozen=True)
class Held:
    """Bytes that a mode holds for a row of a layer: until backward is over; only while the layer aggregates; and while that
    goes backward, where the rows' gradients are wanted.
    """

    kept: int = 0
    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class HeldRows:
    """What a mode holds of a halo row, and of a copy of an own row where there are halo rows; by it memory is planned."""

    halo: Held = Held()
    own: Held = Held()


class Mode(ABC):
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
        return 2 if self.fetches_again and reducer.needs_src_in_backward else 1

    def held_rows(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> HeldRows:
        """What it holds of a layer's rows beside the exchange's buffers. ``row_bytes``: of a row of all exchanged tensors."""
        return HeldRows()

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
        for partial results requests and answers in both. Arguments as of ``Reducer.row_bytes``.
        """
        gradients = plan.halo_rows if exchanged_needs_grad else 0
        total = (self.fetches(reducer) * plan.lists.sent_rows + gradients) * reducer.row_bytes(widths, rows, wire)
        if plan.partials is not None:
            costs = self.costs(reducer, widths, rows, wire, exchanged_needs_grad=exchanged_needs_grad)
            assert costs is not None
            lists = plan.partials.lists
            total += lists.all_wanted * sum(costs.request) + lists.all_served * sum(costs.answer)
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
        Arguments as of ``Reducer.row_bytes``.
        """
        if not self.takes_partials or not isinstance(reducer, WithPartials):
            return None
        row = reducer.row_bytes(widths, rows, wire)
        asked, answered, gradients, returned = reducer.partial_columns(widths, rows).row_bytes(wire)
        backward = exchanged_needs_grad or reducer.needs_src_in_backward
        return Costs(
            source=(self.fetches(reducer) + exchanged_needs_grad) * row,
            row=row,
            request=(asked, gradients if backward else 0),
            answer=(answered, returned if backward else 0),
            ranked=reducer.ranks_winners,
        )
