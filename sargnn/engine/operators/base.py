"""What layers and the stack between them call for everything but aggregation. The training mode chooses the implementation.

Letters: N input rows, M output rows (the first ones of each type of the input rows), F features, K heads, D head width,
R relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.bias import add_bias
from sargnn.engine.dropout import dropout
from sargnn.engine.modes.base import Mode
from sargnn.engine.reducers.base import Tensors
from sargnn.engine.row_norm import RowNorm
from sargnn.engine.scale import scaled_rows
from sargnn.engine.workspace import Workspace
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Draw


class RowMap(NamedTuple):
    """A linear map of rows: weight [out, in], bias [out] or None; of the output rows only, or of all input rows."""

    weight: Tensor
    bias: Tensor | None
    of_outputs: bool


class Operators(ABC):
    """Linear and node-wise operators of one engine. Both implementations compute the same, to rounding.

    Args:
        group: the workers.
        work: the engine's backend, memory and record of time.
    """

    def __init__(self, group: Group, work: Workspace) -> None:
        self._group, self._work = group, work

    @abstractmethod
    def linear(self, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """``x W^T + b``, [N, out], of rows x given in blocks of columns [N, in_k]; with ``onto`` the sum of both.

        Args:
            onto: [N, out], of no further use to the caller; only without a bias.
        """

    @abstractmethod
    def linears(self, plan: LayerPlan, h: Tensor, *maps: RowMap) -> tuple[Tensor, ...]:
        """Several maps of h [N, in]: [M, out] for those of the output rows, [N, out] for the others."""

    @abstractmethod
    def attention_maps(
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z = W h [N, K D], and per head <a_src, z_j> of all rows [N, K] and <a_dst, z_i> of the output rows [M, K].

        Args:
            h: [N, in]. weight: [K D, in]. attn_src, attn_dst: [K, D]; None: the output rows' part is 0.
        """

    @abstractmethod
    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        """How ``h_i W_0`` joins R-GCN's sums: (tensors that stay with the destination, parameters of the reducer).

        Args:
            h: [N, in]. weight: W_0 [in, out].
        """

    @abstractmethod
    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensor, sums: Tensors) -> Tensor:
        """``own_i + sum over r of s_r,i W_r / |N_r(i)|``, [M, out].

        Args:
            own: [M, out], of no further use to the caller. weights: [R, in, out]. sums: per relation [M_r, in]; likewise of no
                further use where their gradients are wanted.
        """

    @abstractmethod
    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """Whether R-GCN is to sum raw rows per relation before it maps them; all workers must ask together.

        Args:
            keeps_sums: they are computed once and kept.
        """

    @abstractmethod
    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` [N, F] for each of two readers."""

    @abstractmethod
    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` [N, F] for one reader, and for another the rows of it that the output rows are, [M, F]."""

    @abstractmethod
    def add(self, first: Tensor, other: Tensor) -> Tensor:
        """The sum of two tables [N, F]."""

    @abstractmethod
    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        """``factor * x`` [N, F] in memory of its own; factor: a number, or a tensor of one."""

    @abstractmethod
    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x + b``; x [N, F] is of no further use to the caller."""

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x + b`` [N, F] in memory of its own; x itself without a bias."""
        return x if bias is None else add_bias(self._work.rows, x, bias)

    def scaled_rows(self, rows: Tensor, factors: Tensor, *, reuse: bool = False) -> Tensor:
        """``factors_i rows_i`` [N, F], in the rows' dtype.

        Args:
            rows: [N, F].
            factors: [N, 1], without gradients, in what sums of such rows are held in.
            reuse: ``rows`` are of no further use to the caller, and become the result.
        """
        return scaled_rows(self._work, rows, factors, reuse=reuse)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw | None) -> Tensor:
        """Rows [N, F] dropped by a draw; unchanged where there is none. ids: int64 [N], original ids."""
        return x if draw is None else dropout(self._work, x, ids, draw)

    @abstractmethod
    def norm_act_drop(
        self,
        x: Tensor,
        norm: RowNorm | None,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...],
        counted: Tensor | None = None,
    ) -> Tensor:
        """Norm, activation and dropout of rows [N, F]; in training all workers must call it where there is a norm.

        Args:
            activation: ``relu`` or ``elu``. ids: int64 [N], original ids. bounds: T + 1, the rows of each type.
            counted: uint8 [N], 1 for rows that statistics over rows are taken of; None: of all.
        """
