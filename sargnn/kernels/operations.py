"""The operations that reducers are built from: what each takes and computes. A kernel has one file for each that it has.

Letters: S source rows, M destination rows, E edges, F features, K heads, D head width. Sums and maxima run over a block's edges
j -> i.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import MovedRows, Operation
from sargnn.kernels.block import EdgeBlock


class SumOperation(Operation):
    """Sums of source rows. For autograd: ``operation(block, src [S, F]) -> [M, F]``.

    Attributes:
        takes_weights: whether it is a ``WeightedSumOperation``.
        splits_sums: whether ``forward`` takes ``lower=``, int16 [M, F]: ``out`` is bf16 then, and holds the upper halves of the
            bits of fp32 sums, ``lower`` the lower ones. For rows of at least 16 columns.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=1)
    takes_weights: ClassVar[bool] = False
    splits_sums: ClassVar[bool] = False

    @abstractmethod
    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """``out[i] += scale[i] * sum of src[j]``.

        Args:
            src: [S, F]. out: [M, F], added to in place. scale: [M], 1 if not given.
        """

    @abstractmethod
    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        """``out[j] = sum of scale[i] * grad[i]``.

        Args:
            grad: [M, F]. out: [S, F], overwritten. scale: [M], 1 if not given.
            add: add to ``out`` instead; without scale.
        """


class WeightedSumOperation(SumOperation):
    """Sums that may have a weight for each edge e from j to i; a kernel's ``sum`` need not be one.

    ``weight`` is [E], in the order of ``block.src`` and of the rows' dtype. For autograd:
    ``operation(block, src, weight=None)``, with gradients for both.
    """

    weight_gradient_rows = MovedRows(per_edge=1, per_destination=1)
    takes_weights = True

    @abstractmethod
    def forward(
        self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None, *, weight: Tensor | None = None
    ) -> None:
        """``out[i] += scale[i] * sum of weight[e] * src[j]``."""

    @abstractmethod
    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        """``out[j] = sum of scale[i] * weight[e] * grad[i]``."""

    @abstractmethod
    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """``out[e] = scale[i] * <grad[i], src[j]>``.

        Args:
            src: [S, F]. grad: [M, F]. out: [E], overwritten. scale: [M], 1 if not given.
        """


class MaxOperation(Operation):
    """Maxima, feature by feature. For autograd: ``operation(block, src [S, F]) -> [M, F]``, 0 without edges."""

    forward_rows = MovedRows(per_edge=1, per_destination=4)
    backward_rows = MovedRows(per_edge=2, per_source=1)

    @abstractmethod
    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        """Fold ``src[j]`` into running maxima, feature by feature.

        Of equal values the source row with the smallest ``block.src_id_rank`` wins, whatever the order of the folds.

        Args:
            src: [S, F]. best: [M, F], starts at -inf.
            winner: int32 [M, F], the winner's ``src_id_rank``, starts at 2**31 - 1.
        """

    @abstractmethod
    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        """``out[j] = sum of grad[i] over the destinations i that row j won``, once each.

        Args:
            grad: [M, F]. winner: int32 [M, F]. out: [S, F], overwritten. add: add to ``out`` instead.
        """


class AttentionOperation(Operation):
    """What both scorings share: a softmax over each destination's edges that goes on from block to block.

    Attributes:
        takes_weights: whether ``forward`` and ``backward`` take ``weight`` [E], in the order of ``block.src`` and of the rows'
            dtype: what each edge's coefficient is multiplied with after softmax and dropout. The softmax does not see it.
        keeps_scores: whether they take ``scores`` [E, K], in the order of ``block.src`` and fp32 for bf16 rows: the edges'
            scores, which ``forward`` writes, so that ``backward`` need not compute them again.
    """

    takes_weights: ClassVar[bool] = False
    keeps_scores: ClassVar[bool] = False

    @abstractmethod
    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        """What the backward pass reads of each destination: er_i (0 if not given), m_i, 1 / s_i, <grad_i, out_i> per head.

        Args:
            running: the finished softmax. grad: [M, K D], the gradient of its rows.

        Returns:
            [M, 4 K]; 1 / s_i is 0 for destinations without edges.
        """


class GatOperation(AttentionOperation):
    """Attention with scores ``LeakyReLU(el_j + er_i)`` (Velickovic et al., 2018).

    For autograd: ``operation(block, attention, z, el, er, weight=None) -> [M, K D]``, 0 without edges.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=2)

    @abstractmethod
    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        er: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        """Fold the block's edges into ``running``, in place.

        Attention dropout is drawn by ``block.src_ids`` and ``block.dst_ids``.

        Args:
            z: [S, K D]. el: [S, K]. er: [M, K].
        """

    @abstractmethod
    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_el: Tensor | None,
        d_er: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """Gradients through the block's edges; weights are computed, and dropped, again.

        Args:
            records: [M, 4 K], from ``destination_records``. grad: [M, K D].
            d_z: [S, K D] and d_el: [S, K], overwritten; None if not wanted. d_er: [M, K], added to.
            add: add to ``d_z`` and ``d_el`` instead.
        """


class GatV2Operation(AttentionOperation):
    """Attention with scores ``<att, LeakyReLU(z_j + x_i)>`` per head (Brody et al., 2022).

    For autograd: ``operation(block, attention, z, x, att, weight=None) -> [M, K D]``, 0 without edges.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=3)
    backward_rows = MovedRows(per_edge=3, per_destination=4, per_source=2)

    @abstractmethod
    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        """As ``GatOperation.forward``.

        Args:
            z: [S, K D], both the values and the sources' part of the scores. x: [M, K D]. att: [K D].
        """

    @abstractmethod
    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_x: Tensor,
        d_att: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """As ``GatOperation.backward``.

        Args:
            d_z: [S, K D], overwritten; None if not wanted. d_x: [M, K D] and d_att: [K D], added to.
            add: add to ``d_z`` instead.
        """
