"""The graph's own edge weights, as reducers hand them to kernels.

A reducer with ``weighted`` uses them where the plan has any. Where it has none, the flag changes nothing, not even a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import AutogradOperation, Operation, takes_weights
from sargnn.errors import KernelError
from sargnn.plan.layer_plan import LayerPlan


def weight_argument(block: EdgeBlock, *, weighted: bool) -> dict[str, Any]:
    """``weight=`` for an operation on the block; nothing where there are no weights, since not every kernel takes some."""
    return {"weight": block.weight} if weighted and block.weight is not None else {}


def check_weights(plan: LayerPlan, operation: Operation | AutogradOperation, *, weighted: bool) -> None:
    """Raises ``KernelError`` if there are weights that a kernel's operation does not take."""
    if weighted and plan.weighted and not takes_weights(operation):
        raise without_weights(operation)


def without_weights(operation: Operation | Callable[..., Tensor]) -> KernelError:
    """What is wrong with a kernel that takes none."""
    return KernelError(
        "This kernel folds rows without weights.",
        given=getattr(operation, "__name__", type(operation).__name__),
        allowed="operations with 'weight', such as those that extend WeightedSumOperation; for domain_parallel a function "
        "(block, ..., weight=None)",
        hint="kernel=auto, or dataset.edge_weights=false",
    )
