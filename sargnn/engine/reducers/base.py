"""What a reducer is: pure mathematics on tensors, no communication, no knowledge of modes.

**Partial results** are what the owner of source rows computes for a peer's output rows, instead of sending the rows. The edges
are those of ``LayerPlan.partials``: on the sources' side shards from own rows to a piece of a peer's output rows, on the
destinations' side lists of own output rows. Four messages, each of which may be empty, for every such output row:

| | from the destination's owner | back |
|---|---|---|
| forward | ``asked``: what the result depends on | ``answered``: the partial result, which merges like a shard |
| backward | ``gradients``: the gradient of the output and what weighs it | ``returned``: gradients of what was ``asked`` |

The gradients of source rows and of parameters arise where the rows are. Nothing need be kept for backward there: what is needed
is asked for again. Attention's scores may be (``Fold.scores``).

**Edge weights**: a reducer with ``weighted`` uses the graph's where the plan has any. Where it has none, the flag changes
nothing, not even a bit.

Letters: N input rows, M output rows, S source rows of a shard, A rows of a piece, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sargnn.backends.base import Backend
from sargnn.backends.block import EdgeBlock
from sargnn.backends.memory import Pool
from sargnn.backends.operations import AutogradOperation, Operation, takes_weights
from sargnn.bf16 import wide
from sargnn.comm.lists import Columns, Layout, PartialRound, Piece
from sargnn.engine.workspace import narrowed, where_products_are
from sargnn.errors import KernelError
from sargnn.plan.layer_plan import LayerPlan, Partials, Shard
from sargnn.profile import Profile

Tensors = tuple[Tensor, ...]
Op = TypeVar("Op", bound=Operation)
State = TypeVar("State")
BackwardState = TypeVar("BackwardState")


@dataclass(frozen=True)
class Fold(Generic[Op]):
    """What a reducer works with while it folds one layer's shards.

    Attributes:
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
        return where_products_are(self.profile, self.half_products)

    def narrowed(self, sums: Tensor, into: Tensor | None = None) -> Tensor:
        return narrowed(self.pool, sums, self.dtype, into)


@dataclass
class Saved:
    """What the backward pass gets to see.

    Attributes:
        exchanged: the call's tensors; empty where ``needs_src_in_backward`` is false, and where the mode has kept the rows in
            another form.
        dest_local, params: likewise; empty where ``needs_src_in_backward`` is false.
        out: the outputs; empty where ``needs_out_in_backward`` is false. ``backward_init`` may drop them.
        stats: what ``finish`` asked to keep.
    """

    exchanged: Tensors
    dest_local: Tensors
    params: Tensors
    out: Tensors
    stats: Tensors


class Part(NamedTuple):
    """Some columns of an aggregation, which are an aggregation of their own: of every table those from ``first`` to ``last``,
    where it has ``of`` in all; of a parameter so many of its numbers. ``onto``: ``dest_local`` becomes the output.
    """

    reducer: Reducer[Any, Any, Any]
    first: int
    last: int
    of: int
    onto: bool = False

    def columns(self, width: int) -> slice:
        return slice(width * self.first // self.of, width * self.last // self.of)


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
        """Of how many edges messages are tensors at one time, where nodes with as many edges are folded together; else None."""
        return None

    def parts(self, width: int, groups: int) -> tuple[Part, ...]:
        """The reducer in so many groups of the ``width`` columns, or fewer; () if columns are not independent."""
        return ()

    def row_bytes(self, widths: tuple[int, ...], rows: torch.dtype, wire: torch.dtype | None = None) -> int:
        """Bytes of a row of all exchanged tensors, as it travels.

        Args:
            widths: F_t of each.
            rows: the dtype of rows.
            wire: what fp32 ones are rounded to on their way.
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
        """Send gradients back through one shard, from its source rows, None where ``needs_src_in_backward`` is false.

        ``out``: [S, F_t] each, overwritten with the gradients of the source rows; None if those are not wanted.
        """

    @abstractmethod
    def backward_finish(self, saved: Saved, state: BackwardState) -> tuple[Tensors, Tensors]:
        """The gradients of ``dest_local`` and this worker's sums for ``params``."""

    @abstractmethod
    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        """The outputs from a merged shard in plain differentiable operators; ``fold.operation`` is an ``AutogradOperation``."""


@dataclass(frozen=True)
class PartialColumns:
    asked: Columns = ()
    answered: Columns = ()
    gradients: Columns = ()
    returned: Columns = ()

    def row_bytes(self, wire: torch.dtype | None = None) -> tuple[int, int, int, int]:
        """Bytes of a row of each, as it travels; ``wire``: what fp32 rows are rounded to on their way."""
        asked, answered, gradients, returned = (
            Layout.of_columns(columns, wire).row_bytes for columns in (self.asked, self.answered, self.gradients, self.returned)
        )
        return asked, answered, gradients, returned


class WithPartials(ABC):
    """What a ``Reducer`` has beside its own methods if it can work with partial results.

    ``asked`` and ``answers`` are [A, width] for each column; what ``out`` holds is overwritten.
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
        """``widths``: F_t of the exchanged tensors; ``rows``: the dtype of rows."""

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
        """Add what comes through a piece of a peer's rows to ``d_exchanged`` [N, F_t] each, None if it is not wanted, and to
        the parameters' gradients; write ``returned``.
        """

    def merge_gradients(self, fold: Fold[Any], now: PartialRound, answers: Tensors, state: Any) -> None:
        """Add what a peer returned for the rows ``now.wanted``."""
        raise NotImplementedError("this reducer is returned nothing")


def partials_of(fold: Fold[Any]) -> Partials:
    assert fold.plan.partials is not None
    return fold.plan.partials


def served_shard(fold: Fold[Any], piece: Piece) -> Shard:
    return partials_of(fold).shards[piece]


def weight_argument(block: EdgeBlock, *, weighted: bool) -> dict[str, Any]:
    """``weight=`` for an operation on the block; nothing where there are no weights, since not every kernel takes some."""
    return {"weight": block.weight} if weighted and block.weight is not None else {}


def check_weights(plan: LayerPlan, operation: Operation | AutogradOperation, *, weighted: bool) -> None:
    """Raises ``KernelError`` if there are weights that a kernel's operation does not take."""
    if weighted and plan.weighted and not takes_weights(operation):
        raise without_weights(operation)


def without_weights(operation: Operation | Callable[..., Tensor]) -> KernelError:
    return KernelError(
        "This kernel folds rows without weights.",
        given=getattr(operation, "__name__", type(operation).__name__),
        allowed="operations with 'weight', such as those that extend WeightedSumOperation; for domain_parallel a function "
        "(block, ..., weight=None)",
        hint="kernel=auto, or dataset.edge_weights=false",
    )
