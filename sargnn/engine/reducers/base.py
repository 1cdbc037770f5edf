"""What a reducer is: pure mathematics on tensors, no communication, no knowledge of modes.

Letters: N input rows, M output rows, S source rows of a shard, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sargnn.backends.base import Backend
from sargnn.backends.memory import Pool
from sargnn.backends.operations import Operation
from sargnn.bf16 import wide
from sargnn.engine.rounding import narrowed
from sargnn.engine.workspace import where_products_are
from sargnn.plan.layer_plan import LayerPlan, Shard
from sargnn.profile import Profile

Tensors = tuple[Tensor, ...]
Op = TypeVar("Op", bound=Operation)
State = TypeVar("State")
"""A forward pass under way."""
BackwardState = TypeVar("BackwardState")
"""A backward pass under way."""


@dataclass(frozen=True)
class Fold(Generic[Op]):
    """What a reducer works with while it folds one layer's shards.

    Attributes:
        plan: the layer's graph.
        operation: the kernel operation that the reducer names, forward and backward.
        backend: what computes all else: folds of messages, moves of rows, products.
        pool: memory for what is as large as a layer's rows.
        profile: where time in linear maps is recorded; operations count their own work.
        dtype: of rows; of bf16 ones sums under way, scores and statistics are fp32.
        half_products: whether products of fp32 tables are taken of their entries rounded to bf16.
        scores: attention's scores [E, K] of a shard's edges, by the shard's ``id``: ``step`` writes them, ``backward_step``
            takes them out. None: they are not kept.
    """

    plan: LayerPlan
    operation: Op
    backend: Backend
    pool: Pool
    profile: Profile
    dtype: torch.dtype
    half_products: bool = False
    scores: dict[int, Tensor] | None = None

    def linear(self) -> AbstractContextManager[None]:
        """Where products of tables are taken: their time is recorded as that of linear maps."""
        return where_products_are(self.profile, self.half_products)

    def narrowed(self, sums: Tensor, into: Tensor | None = None) -> Tensor:
        """``engine.rounding.narrowed`` to the rows' dtype."""
        return narrowed(self.pool, sums, self.dtype, into)


@dataclass
class Saved:
    """What the backward pass gets to see.

    Attributes:
        exchanged, dest_local, params: the call's tensors; empty where ``needs_src_in_backward`` is false, ``exchanged`` also
            where the mode has kept the rows in another form.
        out: the outputs; empty where ``needs_out_in_backward`` is false. ``backward_init`` may drop them, the largest that only
            it needs, which are then freed unless someone else keeps them.
        stats: what ``finish`` asked to keep.
    """

    exchanged: Tensors
    dest_local: Tensors
    params: Tensors
    out: Tensors
    stats: Tensors


class Reducer(ABC, Generic[Op, State, BackwardState]):
    """Folds the messages of one shard after the other, in any order, into the output rows.

    Forward (paper, algorithm 1): ``state = init``; ``step`` for each shard; ``out, stats = finish``.
    Backward (algorithm 2): ``state = backward_init``; ``backward_step`` for each shard gives the gradients of the shard's
    source rows; ``backward_finish`` gives those of ``dest_local`` and ``params``.

    Of a call's tensors, ``exchanged`` [N, F_t] each travel to the peers that need the rows, ``dest_local`` [M, ...] stay with
    the destinations, and ``params`` are the same on every worker.
    """

    name: str
    operation: str
    """The kernel operation that its steps need."""
    needs_src_in_backward: bool
    """The paper's case 2: gradients depend on the source rows (attention, learned messages). False: case 1."""
    needs_out_in_backward: bool = False
    """Whether gradients also depend on the output (attention's softmax)."""
    scores: tuple[int, ...] = ()
    """Which exchanged tensors are scores: fp32 beside bf16 rows, and never rounded on their way."""
    no_partials: str = "its reducer has no partial results"
    """Why edges cannot be aggregated where their sources are, unless it is a ``WithPartials``."""
    library_bytes: int = 0
    """What a library takes for itself when it first does this work, and keeps."""
    linear: bool = False
    """Whether it commutes with a linear map of the rows, so that a model may transform before it aggregates."""

    @property
    def edges_at_once(self) -> int | None:
        """Where messages are tensors of their own, for nodes with as many edges together: of how many edges; None: they are
        not."""
        return None

    def row_bytes(self, widths: tuple[int, ...], rows: torch.dtype, wire: torch.dtype | None = None) -> int:
        """Of a row of all exchanged tensors, as it travels.

        Args:
            widths: F_t of each. rows: the dtype of rows. wire: what fp32 ones are rounded to on their way.
        """
        travels = wire if wire is not None and rows == torch.float32 else rows
        return sum(width * (wide(rows) if t in self.scores else travels).itemsize for t, width in enumerate(widths))

    @abstractmethod
    def init(self, fold: Fold[Op], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> State:
        """The empty accumulator. A reducer that says so may accumulate into a tensor of ``dest_local`` and return it."""

    @abstractmethod
    def step(self, fold: Fold[Op], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: State) -> None:
        """Fold one shard into ``state``, in place. ``rows``: [S, F_t] each, the shard's source rows."""

    @abstractmethod
    def finish(self, fold: Fold[Op], dest_local: Tensors, params: Tensors, state: State) -> tuple[Tensors, Tensors]:
        """The outputs [M, ...] and the statistics to keep for the backward pass."""

    @abstractmethod
    def backward_init(self, fold: Fold[Op], saved: Saved, grads: Tensors) -> BackwardState:
        """What ``backward_step`` starts from. ``grads``: the gradients of the outputs; not to be written to."""

    @abstractmethod
    def backward_step(
        self, fold: Fold[Op], shard: Shard, rows: Tensors | None, saved: Saved, state: BackwardState, out: Tensors | None
    ) -> None:
        """Send gradients back through one shard.

        Args:
            rows: the shard's source rows; None where ``needs_src_in_backward`` is false.
            out: [S, F_t] each, overwritten with the gradients of the source rows; None if those are not wanted.
        """

    @abstractmethod
    def backward_finish(self, saved: Saved, state: BackwardState) -> tuple[Tensors, Tensors]:
        """The gradients of ``dest_local`` and this worker's sums for ``params``."""

    @abstractmethod
    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        """The outputs from a merged shard in plain differentiable operators (``domain_parallel``, and the oracle).

        ``fold.operation`` is a function then, an ``AutogradOperation``.
        """
