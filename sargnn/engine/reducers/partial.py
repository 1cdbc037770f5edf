"""Partial results: what the owner of source rows computes for a peer's output rows, instead of sending the rows.

The edges are those of ``LayerPlan.partials``: on the sources' side shards from own rows to a piece of a peer's output rows, on
the destinations' side lists of own output rows. Four messages, each of which may be empty, for every such output row:

| | from the destination's owner | back |
|---|---|---|
| forward | ``asked``: what the result depends on | ``answered``: the partial result, which merges like a shard |
| backward | ``gradients``: the gradient of the output and what weighs it | ``returned``: gradients of what was ``asked`` |

The gradients of source rows and of parameters arise where the rows are. Nothing need be kept for backward there: what is needed
is asked for again. Attention's scores may be (``Fold.scores``).

Letters: N own rows, M output rows, A rows of a piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from sargnn.comm.layout import Columns, Layout
from sargnn.comm.lists import PartialRound, Piece
from sargnn.engine.reducers.base import Fold, Saved, Tensors
from sargnn.plan.layer_plan import Joint, Partials, Shard


@dataclass(frozen=True)
class PartialColumns:
    """What travels for one output row, see the module's text."""

    asked: Columns = ()
    answered: Columns = ()
    gradients: Columns = ()
    returned: Columns = ()

    def row_bytes(self, wire: torch.dtype | None = None) -> tuple[int, int, int, int]:
        """Of a row of each, as it travels. wire: what fp32 rows are rounded to on their way."""
        asked, answered, gradients, returned = (
            Layout.of_columns(columns, wire).row_bytes for columns in (self.asked, self.answered, self.gradients, self.returned)
        )
        return asked, answered, gradients, returned


class WithPartials(ABC):
    """What a ``Reducer`` has beside its own methods if it can work with partial results.

    Of the tensors that a method gets, ``asked`` and ``answers`` are [A, width] for each column, what ``out`` holds is
    overwritten. ``state`` is that of the pass, forward or backward.
    """

    has_partials: bool = True
    """False where a class folds otherwise than the one that it extends, and says nothing of partial results."""

    def __init_subclass__(cls) -> None:
        """Who folds anew serves anew, or not at all."""
        super().__init_subclass__()
        folds = {"init", "step", "finish", "backward_init", "backward_step", "backward_finish"} & set(vars(cls))
        if folds and not {"serve", "has_partials"} & set(vars(cls)):
            cls.has_partials = False

    ranks_winners: bool = False
    """Whether a partial result names source rows (``Partials.peer_ranks``)."""

    @abstractmethod
    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        """What travels. widths: F_t of the exchanged tensors. rows: the dtype of rows."""

    def ask(self, fold: Fold[Any], now: PartialRound, dest_local: Tensors, params: Tensors, out: Tensors) -> None:
        """Write ``asked`` for the rows ``now.wanted``."""
        raise NotImplementedError("this reducer asks for nothing")

    @abstractmethod
    def serve(
        self, fold: Fold[Any], piece: Piece, exchanged: Tensors, asked: Tensors, params: Tensors, state: Any, out: Tensors
    ) -> None:
        """Write ``answered`` for a piece of a peer's rows, from the own rows ``exchanged``."""

    @abstractmethod
    def merge(self, fold: Fold[Any], now: PartialRound, answers: Tensors, state: Any) -> None:
        """Fold what a peer has computed for the rows ``now.wanted`` into ``state``, in place."""

    @abstractmethod
    def ask_gradients(self, fold: Fold[Any], now: PartialRound, saved: Saved, state: Any, out: Tensors) -> None:
        """Write ``gradients`` for the rows ``now.wanted``."""

    @abstractmethod
    def serve_gradients(
        self, fold: Fold[Any], piece: Piece, asked: Tensors, saved: Saved, state: Any, d_exchanged: Tensors | None, out: Tensors
    ) -> None:
        """Add the gradients of the own rows, and of the parameters, that come through a piece of a peer's rows.

        Args:
            d_exchanged: [N, F_t] each, added to; None if they are not wanted. out: ``returned``.
        """

    def merge_gradients(self, fold: Fold[Any], now: PartialRound, answers: Tensors, state: Any) -> None:
        """Add what a peer returned for the rows ``now.wanted``."""
        raise NotImplementedError("this reducer is returned nothing")


def partials_of(fold: Fold[Any]) -> Partials:
    """The plan's edges that are aggregated where their sources are."""
    assert fold.plan.partials is not None
    return fold.plan.partials


def served_shard(fold: Fold[Any], piece: Piece) -> Shard:
    """The edges from own rows into a piece of a peer's rows."""
    return partials_of(fold).shards[piece]


def joint_of(fold: Fold[Any]) -> Joint | None:
    """The plan's own edges with those into peers' rows that are aggregated together with them; None: there are none."""
    return None if fold.plan.partials is None else fold.plan.partials.joint


def own_shard(fold: Fold[Any]) -> Shard:
    """The edges between own rows."""
    assert fold.plan.shards is not None
    return fold.plan.shards[Piece(fold.plan.rank, 0)]
