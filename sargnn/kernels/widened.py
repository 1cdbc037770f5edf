"""bf16 rows for kernels that know fp32 and fp64 only: widened, computed with, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sargnn.kernels.attention import RunningSoftmax
from sargnn.kernels.base import AutogradOperation, Operation, takes_weights
from sargnn.kernels.block import EdgeBlock


class WidenedOperation(Operation):
    """Passes every call on to another operation with fp32 copies of the tables that are bf16, and stores them back.

    Args:
        operation: what does the work.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        _call(self._operation.forward, block, arguments, settings)

    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        _call(self._operation.backward, block, arguments, settings)

    def weight_gradient(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """Of sums with weights; see ``WeightedSumOperation``."""
        operation: Any = self._operation
        _call(operation.weight_gradient, block, arguments, settings)

    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        """Of attention; see ``AttentionOperation``."""
        operation: Any = self._operation
        records: Tensor = operation.destination_records(er, replace(running, out=_wide(running.out)), _wide(grad))
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)


def widened_autograd(operation: AutogradOperation) -> AutogradOperation:
    """An operation in differentiable operators on fp32 copies of bf16 rows; its result is rounded."""

    def widened(block: EdgeBlock, *arguments: Any, **settings: Any) -> Tensor:
        output = operation(block, *(_wide(argument) for argument in arguments), **settings)
        return output.to(torch.bfloat16) if any(_is_half(argument) for argument in arguments) else output

    widened.takes_weights = takes_weights(operation)  # type: ignore[attr-defined]
    return widened


def _call(call: Callable[..., None], block: EdgeBlock, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
    wide = [_wide(argument) for argument in arguments]
    call(block, *wide, **settings)
    for argument, held in zip(arguments, wide, strict=True):
        if _is_half(argument):
            argument.data.copy_(held)  # which of them the operation writes to is not known; to the others this changes nothing


def _is_half(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.dtype == torch.bfloat16


def _wide(argument: Any) -> Any:
    return argument.float() if _is_half(argument) else argument
