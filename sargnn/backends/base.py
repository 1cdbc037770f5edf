"""How things are computed on one kind of device: tensors in, tensors out; no plan, no mode, no model.

A ``Backend`` has operators on rows, folds of messages and moves of rows between tables and messages. A ``Kernel`` is a set of
operations on blocks of edges, which reducers are built from; the setting ``kernel`` chooses among them. Engine, models and
what carries out a plan know this file, ``operations``, ``block`` and ``memory``, no implementation. Nothing here is
differentiable by itself: ``sargnn.engine`` joins forward and backward.

Letters: N rows, F features, M output rows, E edges of a run, W columns, K heads, D columns of a head, A arriving rows.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.backends import OPERATIONS
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import AutogradOperation, Operation, RunningSoftmax
from sargnn.resolve import load_attribute
from sargnn.rng import Draw


class Kernel(ABC):
    """A set of operations that run on the same devices and dtypes.

    Attributes:
        name: its key.
        operations: name of an operation -> its class, a subclass of ``Operation``, as "module:Class", imported when it is used,
            or as the class itself.
        autograd_operations: name of an operation -> an ``AutogradOperation``, as "module:function" or as the function itself.
            A baseline's operators: what a user has without this engine.
        reads_bf16, autograd_reads_bf16: whether its operations, and those for autograd, take bf16 rows. They get fp32 copies
            where they do not, and their results are rounded.
        backend: the class of the backend that computes all else beside it; None: the device's.
    """

    name: ClassVar[str]
    backend: ClassVar[type[Backend] | None] = None
    operations: ClassVar[Mapping[str, str | type[Operation]]]
    autograd_operations: ClassVar[Mapping[str, str | AutogradOperation]] = {}
    reads_bf16: ClassVar[bool] = False
    autograd_reads_bf16: ClassVar[bool] = False

    @abstractmethod
    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        """Why this kernel cannot run here with tensors like these; empty if it can."""

    def not_supported_reasons(
        self, operation: str, device: torch.device, dtype: torch.dtype, *, autograd: bool = False
    ) -> list[str]:
        """Why this kernel cannot serve an operation; empty if it can. ``autograd``: autograd must differentiate it by
        itself."""
        reasons = self.unavailable_reasons(device, dtype)
        if operation not in self.operations and operation not in self.autograd_operations:
            reasons.append(f"has no operation '{operation}'")
        elif autograd and operation not in self.autograd_operations:
            reasons.append("autograd cannot differentiate its operators, which this mode, a baseline, needs; use one_shot")
        elif not autograd and operation not in self.operations:
            reasons.append(f"has '{operation}' only for autograd, as mode=domain_parallel uses it")
        return reasons

    def graph_bytes(self, operation: str, *, autograd: bool) -> int:
        """Of an edge of a block, what an operation makes of it on first use and keeps in memory that is no tensor's."""
        return 0

    def passing_bytes(self, operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
        """What an operation holds of such memory while it runs. ``rows``: of the block's destinations; ``row_bytes``: of a
        source row; ``dtype``: of rows."""
        return 0

    def operation(self, name: str) -> Operation:
        """A new instance of what ``operations`` says. The name must be there."""
        operation_class = _resolved(self.operations, name)
        made: Operation = operation_class()
        return made

    def autograd_operation(self, name: str) -> AutogradOperation:
        function: AutogradOperation = _resolved(self.autograd_operations, name)
        return function


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "elu": F.elu, "none": lambda v: v}


@dataclass(frozen=True)
class Activation:
    """What happens to a row after its norm: ``y = drop(act(v))``.

    Attributes:
        name: ``relu``, ``elu`` or, behind a norm, ``none``.
        ids: int64 [N], the rows' original ids.
        draw: None drops nothing.
    """

    name: str
    ids: Tensor
    draw: Draw | None

    def of(self, rows: slice) -> Activation:
        return dataclasses.replace(self, ids=self.ids[rows])


class NormVectors(NamedTuple):
    """A batch norm of rows x, ``slope x + shift``, and what xhat = (x - mean) inv_std is made with: wide [F] each."""

    slope: Tensor
    shift: Tensor
    mean: Tensor
    inv_std: Tensor


class Rows(ABC):
    """Operators on tables of rows, fp32, fp64 or bf16. "Wide" is what sums of such rows are held in: fp32 for bf16.

    Where nothing else is said, tables are [N, F], and vectors wide [F].
    """

    @abstractmethod
    def moments(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Number, mean and sum of squared deviations of rows: fp64 [1 + 2 F], 0 where there is no row. ``counted``: uint8 [N],
        1 for rows that count; None: all do."""

    @abstractmethod
    def norm_act_drop(self, x: Tensor, slope: Tensor, shift: Tensor, after: Activation, out: Tensor) -> None:
        """``out = drop(act(slope x + shift))``."""

    @abstractmethod
    def norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, norm: NormVectors, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient g of ``slope x + shift``, into ``d_x``, from that of what ``norm_act_drop`` wrote. Returns sums over the
        rows of g and of g xhat: fp64 [F] each."""

    @abstractmethod
    def norm_backward(
        self, d_x: Tensor, x: Tensor, norm: NormVectors, mean_grad: Tensor, mean_product: Tensor, counted: Tensor | None
    ) -> None:
        """``d_x = slope (d_x - mean_grad - xhat mean_product)``, in place.

        ``counted``: uint8 [N], 0 for rows that no statistics are taken of: theirs is ``slope d_x``; None: of all.
        """

    @abstractmethod
    def layer_norm_act_drop(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, out: Tensor) -> None:
        """``out_i = drop(act(gamma xhat_i + beta))``, xhat_i = (x_i - mean(x_i)) / sqrt(var(x_i) + eps)."""

    @abstractmethod
    def layer_norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient of x, into ``d_x``, and those of beta and gamma: fp64 [F] each."""

    @abstractmethod
    def dropout(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        """``x[i, f] / (1 - p)`` where the draw keeps (i, f), else 0: linear in x, so also its own backward pass."""

    @abstractmethod
    def column_sums(self, x: Tensor) -> Tensor:
        """The sum of the rows of x [N, F], wide [F]."""

    @abstractmethod
    def scale(self, rows: Tensor, factors: Tensor) -> Tensor:
        """``rows[i] *= factors[i]``, in place, rounded once; returns ``rows``, which must be contiguous. ``factors``: wide
        [N]."""

    @abstractmethod
    def join_halves(self, upper: Tensor, lower: Tensor) -> None:
        """Sums become rows, in place: rounded to nearest, ties to even.

        Args:
            upper: bf16 [N, F], the upper halves of the bits of fp32 sums.
            lower: int16 [N, F], the lower ones.
        """

    @abstractmethod
    def product(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """``out = x w + bias``, which is returned: [N, O] of the dtype of x or wide, from [N, K], [K, O] and [O]. Factors are
        rounded to the dtype of x."""

    @abstractmethod
    def add_product(self, total: Tensor, x: Tensor, w: Tensor) -> None:
        """``total += x w``: [N, O] of the dtype of x or wide, from [N, K] and [K, O]."""

    @abstractmethod
    def transposed_product(self, x: Tensor, g: Tensor) -> Tensor:
        """x^T g: wide [K, O], from [N, K] and [N, O]."""

    @abstractmethod
    def add_transposed_product(self, total: Tensor, x: Tensor, g: Tensor) -> None:
        """``total += x^T g``, likewise."""


class Folds(ABC):
    """Messages of edges folded into rows, and partial results merged into running ones, in wide numbers.

    Messages come in runs of edges whose destinations ascend. A partial result, a row that a peer sends, counts like one edge.

    Where nothing else is said, ``values`` are [E, W], ``rows`` their destinations, int32 [E], ascending, and results [M, W]. Of
    partial results ``values`` are [A, W], and ``rows`` int32 [A], none twice.
    """

    nobody: ClassVar[int] = -1
    """Whose a maximum over edges is before there is one."""
    no_rank: ClassVar[int] = 2**31 - 1
    """The winner that is none of a peer's rows."""

    @abstractmethod
    def add_to_ends(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        """``out[rows[e]] += values[e]``."""

    @abstractmethod
    def add_to_starts(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        """The same for rows in any order."""

    @abstractmethod
    def fold_max(self, values: Tensor, rows: Tensor, first: int, rank: Tensor, best: Tensor, winner: Tensor) -> None:
        """Fold messages into running maxima; of equal values that of the smallest rank wins, then the first edge.

        Not a number wins over all, so that a run that has diverged is not hidden.

        Args:
            first: the number of the run's first edge.
            rank: int32 by the number of the edge.
            best: starts at -inf.
            winner: int32 [M, W], numbers of edges, starts at ``nobody``.
        """

    @abstractmethod
    def fold_softmax(self, logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
        """Fold softmax-weighted sums: ``out_i`` is the sum so far of exp(logit - largest_i) value, ``total_i`` of the weights.

        Args:
            logits: [E, K].
            values: [E, K D].
            largest: [M, K], starts at -inf.
            total: [M, K], from 0.
            out: [M, K D], from 0.
        """

    @abstractmethod
    def merge_softmax(self, rows: Tensor, values: Tensor, log_sum: Tensor, running: RunningSoftmax) -> None:
        """Fold softmaxes over other edges into running ones: m' = max(m, l), s' = s exp(m - m') + exp(l - m'), and

            out' = (s exp(m - m') out + exp(l - m') v) / s'

        Args:
            values: [A, K D], v, normalised.
            log_sum: [A, K], l; -inf: over no edges.
        """

    @abstractmethod
    def merge_maxima(self, rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
        """Fold maxima over other edges into running ones, as ``MaxOperation.forward`` folds rows.

        Args:
            places: int32 [A, F], the winners, as places in ``ranks``.
            ranks: int32.
            winner: int32 [M, F], ranks.
        """

    @abstractmethod
    def take_winners(self, winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
        """The places in ``ranks`` of the winners of some rows; ``no_rank`` for winners that are not there.

        Args:
            winner: int32 [M, F], ranks.
            rows: int32 [A].
            ranks: int32, ascending.
            out: int32 [A, F].
        """

    @abstractmethod
    def drop_factors(self, block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
        """[E], 0 for edges of the block that are dropped and 1 / (1 - p) for the others, in the order of ``block.src``.

        Drawn by the original ids of an edge's ends; parallel edges share a draw.
        """


class Moves(ABC):
    """Rows on their way between tables [N, F] and messages [R, F]; ``rows``: int32 [R], of a table."""

    @abstractmethod
    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        """``out[r] = source[rows[r]]``, rounded to the dtype of ``out``, which is returned."""

    @abstractmethod
    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        """``target[rows[r]] += values[r]``; no row twice."""

    def add_each(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        """The same of rows that may repeat, in their order; of one dtype, fp32 or fp64."""
        target.index_add_(0, rows, values)

    def add_scaled(self, target: Tensor, to: Tensor, weights: Tensor, source: Tensor, rows: Tensor) -> None:
        """``target[to[r]] += weights[r] * source[rows[r]]``, likewise; ``source`` may be bf16."""
        self.add_each(target, to, weights[:, None] * source.index_select(0, rows).to(target.dtype))

    def take_runs(self, sources: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, out: Tensor) -> None:
        """``take`` of several tables: each run of ``out`` from its own. ``runs`` are of [0, R), one behind the other."""
        for source, run in zip(sources, runs, strict=True):
            self.take(source, rows[run], out[run])

    def add_runs(self, targets: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, values: Tensor) -> None:
        """``add`` to several tables, each a run of ``values``; a table more than once has no row twice."""
        for target, run in zip(targets, runs, strict=True):
            self.add(target, rows[run], values[run])


class Backend(ABC):
    """All but the edge operations, which are a ``Kernel``'s. Each engine has one of its own. ``pools``: whether memory of large
    tables is used again (``backends.memory``)."""

    pools: ClassVar[bool] = False
    rows: Rows
    folds: Folds
    moves: Moves

    def __init__(self, device: torch.device) -> None:
        self.device = device


def operations_of(kernel: str, attribute: str = "") -> dict[str, str]:
    """Of the kernels in ``KERNELS``: name of an operation -> its class, or that class's ``.attribute``."""
    return {name: classes[kernel] + attribute for name, classes in OPERATIONS.items() if kernel in classes}


def _resolved(table: Mapping[str, Any], name: str) -> Any:
    entry = table[name]
    return load_attribute(entry) if isinstance(entry, str) else entry
