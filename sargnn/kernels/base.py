"""What a kernel is. One method family per reducer operation; a kernel names the operations that it has."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock


class Kernel(ABC):
    """Executes reducer steps on an ``EdgeBlock``. Stateless but for what it keeps in ``EdgeBlock.cache``.

    Letters: S source rows, M destination rows, F features, K heads, D head width.
    """

    name: str
    operations: frozenset[str]
    """Which operations it has: ``sum``, ``max``, ``gat``, ``gatv2``."""

    @abstractmethod
    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        """Why this kernel cannot run here with tensors like these; empty if it can."""

    def not_supported_reasons(self, operation: str, device: torch.device, dtype: torch.dtype) -> list[str]:
        """Why this kernel cannot serve a call; empty if it can."""
        reasons = self.unavailable_reasons(device, dtype)
        if operation not in self.operations:
            reasons.append(f"has no operation '{operation}'")
        return reasons

    @abstractmethod
    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """``out[i] += scale[i] * sum of src[j] over the block's edges j -> i``.

        Args:
            src: [S, F]. out: [M, F], added to in place. scale: [M], 1 if not given.
        """

    @abstractmethod
    def sum_backward(
        self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False
    ) -> None:
        """The adjoint: ``out[j] = sum of scale[i] * grad[i] over the block's edges j -> i``.

        Args:
            grad: [M, F]. out: [S, F], overwritten. scale: [M], 1 if not given.
            add: add to ``out`` instead; without scale.
        """

    @abstractmethod
    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        """The sum [M, F] in operators that autograd differentiates by itself: what a user has without this engine."""

    @abstractmethod
    def max_forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        """Fold ``src[j]`` over the block's edges j -> i into running maxima, feature by feature.

        Of equal values the source row with the smallest ``block.src_order`` wins, whatever the order of the folds.

        Args:
            src: [S, F]. best: [M, F], starts at -inf. winner: int32 [M, F], the winner's ``src_order``, starts at 2**31 - 1.
        """

    @abstractmethod
    def max_backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor) -> None:
        """``out[j] = sum of grad[i] over the destinations i that row j won``, once each.

        Args:
            grad: [M, F]. winner: int32 [M, F]. out: [S, F], overwritten.
        """

    @abstractmethod
    def max_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        """The maximum [M, F], 0 without edges, in operators that autograd differentiates by itself."""

    @abstractmethod
    def gat_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, running: RunningSoftmax
    ) -> None:
        """Fold the block's edges j -> i into ``running``, with scores LeakyReLU(el_j + er_i).

        Attention dropout is drawn by ``block.src_ids`` and ``block.dst_ids``.

        Args:
            z: [S, K D]. el: [S, K]. er: [M, K].
        """

    @abstractmethod
    def attention_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        """What the backward pass reads of each destination: er_i (0 if not given), m_i, 1 / s_i, <grad_i, out_i> per head.

        Args:
            running: the finished softmax. grad: [M, K D], the error of its rows.

        Returns:
            [M, 4 K]; 1 / s_i is 0 for destinations without edges.
        """

    @abstractmethod
    def gat_backward(
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
    ) -> None:
        """Errors through the block's edges; weights are computed, and dropped, again.

        Args:
            records: [M, 4 K], from ``attention_records``. grad: [M, K D].
            d_z: [S, K D] and d_el: [S, K], overwritten; None if not wanted. d_er: [M, K], added to.
        """

    @abstractmethod
    def gat_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor) -> Tensor:
        """The attention [M, K D], 0 without edges, in operators that autograd differentiates by itself."""

    @abstractmethod
    def gatv2_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, running: RunningSoftmax
    ) -> None:
        """As ``gat_forward``, with scores <att, LeakyReLU(z_j + x_i)> per head.

        Args:
            z: [S, K D], both the values and the sources' part of the scores. x: [M, K D]. att: [K D].
        """

    @abstractmethod
    def gatv2_backward(
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
    ) -> None:
        """As ``gat_backward``.

        Args:
            d_z: [S, K D], overwritten; None if not wanted. d_x: [M, K D] and d_att: [K D], added to.
        """

    @abstractmethod
    def gatv2_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor) -> Tensor:
        """As ``gat_autograd``."""
