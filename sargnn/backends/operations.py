"""What an edge operation is, and those that reducers are built from: what each takes and computes.

Letters: S source rows, M destination rows, E edges, F features, K heads, D head width. Sums and maxima run over a block's edges
j -> i.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.bf16 import wide
from sargnn.rng import Draw

Maps = tuple[Tensor, Tensor]
"""A linear map of edges' features: W [F, D] and b [F]; or the gradients of both."""
AutogradOperation = Callable[..., Tensor]
"""``operation(block, ...) -> [M, F]`` in operators that autograd differentiates by itself."""


@dataclass(frozen=True)
class MovedRows:
    """Rows that one pass of an operation reads and writes, as wide as its first argument that is a table of rows: of each edge,
    of each destination row that has an edge, and of each source row."""

    per_edge: int = 0
    per_destination: int = 0
    per_source: int = 0


class Operation(ABC):
    """One operation of one kernel: folds a block's edges into the destination rows, and sends gradients back through them.

    Stateless but for what it keeps in ``EdgeBlock.cache``. Below are the arguments of each operation.

    Attributes:
        forward_rows, backward_rows: what profiles count: each edge's row read, each row written, or read and written where it
            is added to. Not index arrays, 4 bytes an edge, nor the softmax's records. An operation that says nothing counts 0.
            A pass that is called with ``add=True`` reads each source row once more.
        autograd: the same for kernels that are a baseline, as ``Kernel.autograd_operations`` has it.
    """

    autograd: ClassVar[AutogradOperation]
    forward_rows: ClassVar[MovedRows] = MovedRows()
    backward_rows: ClassVar[MovedRows] = MovedRows()

    @abstractmethod
    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """Fold the block's edges into what ``arguments`` accumulate, in place."""

    @abstractmethod
    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """The adjoint of ``forward``, into what ``arguments`` hold gradients of."""


@dataclass(frozen=True)
class Attention:
    """The numbers of an attention.

    Attributes:
        negative_slope: of LeakyReLU, 0 to 1; of ``gat`` and ``gatv2``.
        draw: of attention dropout; None drops nothing.
        factor: what products are multiplied with; of ``dot``.
    """

    heads: int
    negative_slope: float = 0.0
    draw: Draw | None = None
    factor: float = 1.0

    @property
    def scale(self) -> float:
        """What weights that are kept are multiplied with."""
        return 1.0 if self.draw is None else self.draw.scale

    def by_head(self, rows: Tensor) -> Tensor:
        """Rows [any, K D] as [any, K, D], without a copy."""
        return rows.view(len(rows), self.heads, rows.shape[1] // self.heads)


@dataclass(frozen=True)
class RunningSoftmax:
    """A softmax over edges that are met shard by shard, and the rows that it weighs.

    With m, s and out so far, and scores e_j of new edges: m' = max(m, max of e_j), s' = s exp(m - m') + sum of exp(e_j - m'),
    out' = (out s exp(m - m') + sum of exp(e_j - m') z_j) / s'.

    Attributes:
        out: [M, K D], normalised at all times; undefined where ``denominator`` is 0.
        max_score: [M, K], m, -inf before any edge.
        denominator: [M, K], s, 0 before any edge.
        edge_out: [M, K F], the sums of edges' rows with the same weights, normalised likewise; None: edges have none.
    """

    out: Tensor
    max_score: Tensor
    denominator: Tensor
    edge_out: Tensor | None = None

    @classmethod
    def empty(cls, like: Tensor, num_dst: int, heads: int, out: Tensor | None = None) -> RunningSoftmax:
        """Before any edge, in what sums of such rows are held in; ``like``: [any, K D]; ``out``: memory to be used for it."""
        held = wide(like.dtype)
        return cls(
            like.new_empty(num_dst, like.shape[1], dtype=held) if out is None else out,
            like.new_full((num_dst, heads), float("-inf"), dtype=held),
            like.new_zeros(num_dst, heads, dtype=held),
        )


class SumOperation(Operation):
    """Sums of source rows. For autograd: ``operation(block, src [S, F]) -> [M, F]``.

    ``src`` is [S, F], ``grad`` [M, F], ``scale`` [M], 1 if not given.

    Attributes:
        takes_weights: whether it is a ``WeightedSumOperation``.
        splits_sums: whether ``forward`` takes ``lower=``, int16 [M, F]: ``out`` is bf16 then, and holds the upper halves of the
            bits of fp32 sums, ``lower`` the lower ones. For rows of at least 16 columns.
        writes_sums: whether ``forward`` takes ``add=False``: ``out`` is overwritten, and rows without an edge become 0.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=1)
    takes_weights: ClassVar[bool] = False
    splits_sums: ClassVar[bool] = False
    writes_sums: ClassVar[bool] = False

    @abstractmethod
    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """``out[i] += scale[i] * sum of src[j]``, [M, F]."""

    @abstractmethod
    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        """``out[j] = sum of scale[i] * grad[i]``, [S, F]; ``add``: to what there is, without scale."""


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
        """``out[e] = scale[i] * <grad[i], src[j]>``, [E]."""


class MaxOperation(Operation):
    """Maxima, feature by feature. For autograd: ``operation(block, src [S, F]) -> [M, F]``, 0 without edges."""

    forward_rows = MovedRows(per_edge=1, per_destination=4)
    backward_rows = MovedRows(per_edge=2, per_source=1)

    @abstractmethod
    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        """Fold ``src[j]``, [S, F], into running maxima.

        Of equal values the source row with the smallest ``block.src_id_rank`` wins, whatever the order of the folds.

        Args:
            best: [M, F], starts at -inf.
            winner: int32 [M, F], the winner's ``src_id_rank``, starts at 2**31 - 1.
        """

    @abstractmethod
    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        """``out[j] = sum of grad[i] over the destinations i that row j won``, [S, F], once each; ``add``: to what there is."""


@dataclass(frozen=True)
class Tables:
    """A record among an operation's arguments whose fields are tables, tuples of them, or None."""


@dataclass(frozen=True)
class AttentionInputs(Tables):
    """What an attention reads of its edges' ends, forward and backward.

    Attributes:
        sources: of ``gat`` z [S, K D] and el [S, K]; of ``gatv2`` z, both the values and the sources' part of the scores; of
            ``dot`` values [S, K D] and keys [S, K C], or one table that is both.
        destinations: the destinations' part of the scores: of ``gat`` er [M, K], of ``gatv2`` x [M, K D], of ``dot`` queries
            [M, K C].
        att: [K D], of ``gatv2``.
        weight: [E], in the order of ``block.src`` and of the rows' dtype: what each edge's coefficient is multiplied with after
            softmax and dropout. The softmax does not see it. None: ones.
        scores: [E, K], in the order of ``block.src`` and fp32 for bf16 rows: the edges' scores, which ``forward`` writes, so
            that ``backward`` need not compute them again. None: they are not kept.
        edges: of ``dot``, f [E, F] in the order of ``block.src`` and p [M, K F], and for ``backward`` the gradient of
            ``RunningSoftmax.edge_out``, [M, K F]. Empty: edges have no rows. With some, scores are not kept.
        edge_map: of ``edge_gat`` A [K, C], of ``edge_gatv2`` W [K D, C], for edges with C features, the column ``ATTR``; wide.
            None: features are not read.
    """

    sources: tuple[Tensor, ...]
    destinations: Tensor
    att: Tensor | None = None
    weight: Tensor | None = None
    scores: Tensor | None = None
    edges: tuple[Tensor, ...] = ()
    edge_map: Tensor | None = None


@dataclass(frozen=True)
class AttentionGradients(Tables):
    """Where the gradients of ``AttentionInputs`` go.

    Attributes:
        sources: of each of the sources' tensors, overwritten; None: they are not wanted.
        destinations: of the destinations' part, added to; what sums of such rows are held in.
        att: [K D], added to.
        edges: of p, added to, wide; and of f, overwritten, unless it is not wanted.
        edge_map: like the map, added to.
    """

    sources: tuple[Tensor, ...] | None
    destinations: Tensor
    att: Tensor | None = None
    edges: tuple[Tensor, ...] = ()
    edge_map: Tensor | None = None


class AttentionOperation(Operation):
    """A softmax over each destination's edges that goes on from block to block, and the source rows that it weighs.

    Attention dropout is drawn by ``block.src_ids`` and ``block.dst_ids``. ``takes_weights``, ``keeps_scores`` and
    ``takes_edge_rows``: whether it reads weights, writes and reads scores, and reads edges' rows of ``AttentionInputs``.
    """

    takes_weights: ClassVar[bool] = False
    keeps_scores: ClassVar[bool] = False
    takes_edge_rows: ClassVar[bool] = False

    @abstractmethod
    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        """Fold the block's edges into ``running``, in place."""

    @abstractmethod
    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        """What the backward pass reads of each destination: er_i, m_i, 1 / s_i, <grad_i, out_i> per head, [M, 4 K]; 1 / s_i is
        0 for destinations without edges.

        Args:
            er: [M, K], of ``gat``; None: 0.
            running: the finished softmax.
            grad: [M, K D], the gradient of its rows.
        """

    @abstractmethod
    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        """Gradients through the block's edges; weights are computed, and dropped, again.

        Args:
            records: [M, 4 K], from ``destination_records``.
            grad: [M, K D], of the output.
            add: add to ``into.sources`` instead of overwriting them.
        """


class GatOperation(AttentionOperation):
    """Attention with scores ``LeakyReLU(el_j + er_i)`` (Velickovic et al., 2018); as ``edge_gat`` with
    ``LeakyReLU(el_j + er_i + A f_ji)``, f_ji the edge's features.

    For autograd: ``operation(block, attention, z, el, er, edge_map=None, weight=None) -> [M, K D]``, 0 without edges.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=2)


class GatV2Operation(AttentionOperation):
    """Attention with scores ``<att, LeakyReLU(z_j + x_i)>`` per head (Brody et al., 2022); as ``edge_gatv2`` with
    ``<att, LeakyReLU(z_j + x_i + W f_ji)>``.

    For autograd: ``operation(block, attention, z, x, att, edge_map=None, weight=None) -> [M, K D]``, 0 without edges.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=3)
    backward_rows = MovedRows(per_edge=3, per_destination=4, per_source=2)


class DotOperation(AttentionOperation):
    """Attention with scores ``factor <q_i, k_j>`` per head (Vaswani et al., 2017); C is the width of a head of k and q.

    An edge's row f, the same for all heads, counts as further columns of its source's keys and values, against p beside q.

    For autograd: ``operation(block, attention, v, k, q, weight=None) -> [M, K D]``, 0 without edges; without k where v is both.
    """

    forward_rows = MovedRows(per_edge=2, per_destination=3)
    backward_rows = MovedRows(per_edge=4, per_destination=4, per_source=4)


def takes_weights(operation: Operation | AutogradOperation) -> bool:
    """Whether what a kernel runs takes a weight for each edge; one from outside of the package need not."""
    declared: bool | None = getattr(operation, "takes_weights", None)
    return "weight" in inspect.signature(operation).parameters if callable(operation) and declared is None else bool(declared)


class GineOperation(Operation):
    """Sums of rows changed by their edges' features. For autograd: ``operation(block, z [S, F], W [F, D], b [F]) -> [M, F]``.

    With f_e the column ``ATTR`` of the block's edges, w_e their weights, 1 where there are none, and u_e = z_j + W f_e + b:

        out_i += sum of w_e relu(u_e)        d z_j = sum of h_e        d W += sum of h_e f_e^T        d b += sum of h_e

    where h_e = w_e g_i where u_e > 0, else 0. W, b, sums and their gradients are wide.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=2)

    @abstractmethod
    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        """Add to ``out`` [M, F]. z: [S, F]."""

    @abstractmethod
    def backward(
        self, block: EdgeBlock, z: Tensor, maps: Maps, grad: Tensor, out: Tensor | None, d_maps: Maps, *, add: bool = False
    ) -> None:
        """Gradients.

        Args:
            grad: [M, F], like z.
            out: [S, F], d z, like z: overwritten, or with ``add`` added to; None: it is not wanted.
            d_maps: added to.
        """


class ScaledSumOperation(Operation):
    """Sums of rows times a vector of each edge's kind. For autograd: ``operation(block, z [S, B D], w [K, D], kinds [E])``
    gives [M, B D].

    With k the kind of an edge e = j -> i, and rows as B blocks of D columns:

        out_i[b] += sum of z_j[b] * w_k        d z_j[b] = sum of g_i[b] * w_k        d w_k += sum of z_j[b] * g_i[b]

    w, sums and their gradients are wide; kinds are int32, in the order of ``block.src``.
    """

    forward_rows = MovedRows(per_edge=1, per_destination=2)
    backward_rows = MovedRows(per_edge=1, per_source=2)

    @abstractmethod
    def forward(self, block: EdgeBlock, z: Tensor, w: Tensor, kinds: Tensor, out: Tensor) -> None:
        """Add to ``out`` [M, B D]. z: [S, B D]."""

    @abstractmethod
    def backward(
        self,
        block: EdgeBlock,
        z: Tensor,
        w: Tensor,
        kinds: Tensor,
        grad: Tensor,
        out: Tensor | None,
        d_w: Tensor,
        *,
        add: bool = False,
    ) -> None:
        """Gradients.

        Args:
            grad: [M, B D], like z.
            out: [S, B D], d z, like z: overwritten, or with ``add`` added to; None: it is not wanted.
            d_w: [K, D], added to.
        """
