"""What a kernel is. One method family per reducer operation; a kernel names the operations that it has."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sargnn.kernels.block import EdgeBlock


class Kernel(ABC):
    """Executes reducer steps on an ``EdgeBlock``. Stateless but for what it keeps in ``EdgeBlock.cache``.

    Letters: S source rows, D destination rows, F features.
    """

    name: str
    operations: frozenset[str]
    """Which operations it has: ``sum``."""

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
    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor) -> None:
        """``out[i] += sum of src[j] over the block's edges j -> i``.

        Args:
            src: [S, F]. out: [D, F], added to in place.
        """

    @abstractmethod
    def sum_backward(self, block: EdgeBlock, grad: Tensor, out: Tensor) -> None:
        """The adjoint: ``out[j] = sum of grad[i] over the block's edges j -> i``.

        Args:
            grad: [D, F]. out: [S, F], overwritten.
        """

    @abstractmethod
    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        """The sum [D, F] in operators that autograd differentiates by itself: what a user has without this engine."""
