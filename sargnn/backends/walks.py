"""Operations whose loops walk over a block's edges: what is the same on every device. A device gives functions over (a walk,
factors, tables), which are called where there are edges.

Letters: S source rows, M destination rows, E edges, F features, K heads, D head width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import (
    Attention,
    AttentionGradients,
    AttentionInputs,
    AttentionOperation,
    RunningSoftmax,
    WeightedSumOperation,
)

Direction = Literal["forward", "backward"]
"""How edges are listed: by their destination rows, or by their source rows."""


def finds_edges(block: EdgeBlock, gradients: Sequence[Tensor], *, add: bool) -> bool:
    """Whether a backward pass has edges to walk over. Gradients of source rows that it was to overwrite are 0 if not."""
    if not block.num_edges:
        for gradient in () if add else gradients:
            gradient.zero_()
        return False
    assert add or block.src_rows is None or not gradients, "source rows that are not listed would not be written"
    return True


class Factors(NamedTuple):
    """What rows are multiplied with on their way into sums; None: ones.

    Attributes:
        weight: [E], of edges.
        places: int32 [E], where in ``weight`` each edge stands; None: in the order of the walk.
        near: of rows at the ends that are summed into.
        far: of rows that are read.
    """

    weight: Tensor | None = None
    places: Tensor | None = None
    near: Tensor | None = None
    far: Tensor | None = None


class WalkedSum(WeightedSumOperation):
    """Backward with weights reads what is made the first time: of the block's own weights ``EdgeBlock.t_weight``, in order; of
    others ``EdgeBlock.t_edge``, which says where each is."""

    lists_sources = True

    @abstractmethod
    def sum_rows(
        self, block: EdgeBlock, direction: Direction, rows: Tensor, out: Tensor, factors: Factors, *, add: bool
    ) -> None:
        """``out[near] = near_factor * sum of weight * far_factor * rows[far]`` over the edges of each listed near end: of
        destinations (``forward``) or of sources. ``add``: to what there is."""

    def forward(
        self,
        block: EdgeBlock,
        src: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        add: bool = True,
        **settings: Any,
    ) -> None:
        if not add and block.num_listed < block.num_dst:
            out.zero_()
        if block.num_edges:
            self.sum_rows(block, "forward", src, out, Factors(weight, near=scale), add=add, **settings)

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
        if finds_edges(block, (out,), add=add):
            if weight is None or weight is block.weight:
                factors = Factors(None if weight is None else block.t_weight, far=scale)
            else:
                factors = Factors(weight, block.t_edge, far=scale)
            self.sum_rows(block, "backward", grad, out, factors, add=add)


@dataclass(frozen=True)
class AttentionBackward:
    """The arguments of ``AttentionOperation.backward``."""

    block: EdgeBlock
    attention: Attention
    inputs: AttentionInputs
    records: Tensor
    grad: Tensor
    into: AttentionGradients
    add: bool


class WalkedAttention(AttentionOperation):
    lists_sources = True
    takes_weights = True

    @abstractmethod
    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        """``forward`` of a block that has edges."""

    @abstractmethod
    def send_back(self, back: AttentionBackward) -> None:
        """``backward`` through a block that has edges."""

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        if block.num_edges:
            self.fold(block, attention, inputs, running)

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
        if finds_edges(block, into.sources or (), add=add):
            self.send_back(AttentionBackward(block, attention, inputs, records, grad, into, add))
