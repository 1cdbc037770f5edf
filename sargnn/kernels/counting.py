"""Wraps any operation and counts the bytes that it reads and writes, for profiles."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sargnn.kernels.base import MovedRows, Operation
from sargnn.kernels.block import EdgeBlock
from sargnn.profile import AGGREGATION, Profile


class CountedOperation(Operation):
    """Passes every call on to another operation, and counts the rows that this operation declares (see ``Operation``).

    What a reducer does outside of its operation is not counted.

    Args:
        operation: what does the work.
        profile: where it is counted.
    """

    def __init__(self, operation: Operation, profile: Profile) -> None:
        self._operation, self._profile = operation, profile

    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self._count(self._operation.forward_rows, block, arguments, settings)
        self._operation.forward(block, *arguments, **settings)

    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self._count(self._operation.backward_rows, block, arguments, settings)
        self._operation.backward(block, *arguments, **settings)

    def weight_gradient(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """Of sums with weights; see ``WeightedSumOperation``."""
        operation: Any = self._operation
        self._count(operation.weight_gradient_rows, block, arguments, settings)
        operation.weight_gradient(block, *arguments, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)

    def _count(self, moved: MovedRows, block: EdgeBlock, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        rows = next((tensor for tensor in arguments if isinstance(tensor, Tensor) and tensor.dim() == 2), None)
        if rows is None:
            return
        per_source = moved.per_source + bool(settings.get("add"))  # with add=True each source row is read, too
        number = (
            moved.per_edge * block.num_edges + moved.per_destination * block.num_listed + per_source * block.num_listed_sources
        )
        self._profile.work(AGGREGATION, number * rows.shape[1] * rows.element_size())
