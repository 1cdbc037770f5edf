"""What a kernel is: a set of operations on blocks of edges, each in a file of its own, that reducers are built from."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.resolve import resolve

AutogradOperation = Callable[..., Tensor]
"""``operation(block, ...) -> [M, F]`` in operators that autograd differentiates by itself."""


@dataclass(frozen=True)
class MovedRows:
    """Rows that one pass of an operation reads and writes, as wide as its first argument that is a table of rows.

    Attributes:
        per_edge: of each edge. per_destination: of each destination row that has an edge. per_source: of each source row.
    """

    per_edge: int = 0
    per_destination: int = 0
    per_source: int = 0


class Operation(ABC):
    """One operation of one kernel: folds a block's edges into the destination rows, and sends gradients back through them.

    Stateless but for what it keeps in ``EdgeBlock.cache``. ``sargnn.kernels.operations`` has the arguments of each operation.

    Attributes:
        forward_rows, backward_rows: what profiles count: each edge's row read, each row written, or read and written where it
            is added to. Not index arrays, 4 bytes an edge, nor the softmax's records. An operation that says nothing counts 0.
            A pass that is called with ``add=True`` reads each source row once more.
    """

    forward_rows: ClassVar[MovedRows] = MovedRows()
    backward_rows: ClassVar[MovedRows] = MovedRows()

    @abstractmethod
    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """Fold the block's edges into what ``arguments`` accumulate, in place."""

    @abstractmethod
    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        """The adjoint of ``forward``, into what ``arguments`` hold gradients of."""


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
    """

    name: ClassVar[str]
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
        """Why this kernel cannot serve an operation; empty if it can.

        Args:
            autograd: whether the operation must be one that autograd differentiates by itself.
        """
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
        """What an operation holds of such memory while it runs.

        Args:
            edges, rows: of the block, and of its destinations. row_bytes: of a source row. dtype: of rows.
        """
        return 0

    def operation(self, name: str) -> Operation:
        """A new instance of what ``operations`` says. The name must be there."""
        operation_class = _resolved(self.operations, name)
        made: Operation = operation_class()
        return made

    def autograd_operation(self, name: str) -> AutogradOperation:
        """What ``autograd_operations`` says. The name must be there."""
        function: AutogradOperation = _resolved(self.autograd_operations, name)
        return function


def _resolved(table: Mapping[str, Any], name: str) -> Any:
    entry = table[name]
    return resolve("operation", table, name) if isinstance(entry, str) else entry


def takes_weights(operation: Operation | AutogradOperation) -> bool:
    """Whether what a kernel runs takes a weight for each edge; one from outside of the package need not."""
    declared: bool | None = getattr(operation, "takes_weights", None)
    return "weight" in inspect.signature(operation).parameters if callable(operation) and declared is None else bool(declared)
