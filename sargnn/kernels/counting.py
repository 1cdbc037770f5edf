"""A kernel that says how many bytes it reads and writes, for profiles; the work is another kernel's.

Counted are rows: each edge's row read, each row written, or read and written where it is added to; not index arrays, 4 bytes an
edge, nor the records of the softmax, nor what a reducer does outside of kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.spans import AGGREGATION, count_work

_READS = {
    # method: (rows read per edge, rows written per destination and per source), in rows of its first row argument
    "sum_forward": (1, 2, 0), "sum_backward": (1, 0, 1), "max_forward": (1, 4, 0), "max_backward": (2, 0, 1),
    "gat_forward": (1, 2, 0), "gat_backward": (1, 0, 2), "gatv2_forward": (1, 3, 0), "gatv2_backward": (3, 4, 2),
}  # fmt: skip


def _counted(name: str) -> Any:
    per_edge, per_destination, per_source = _READS[name]

    def call(self: Any, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        rows = next(one for one in arguments if isinstance(one, Tensor) and one.dim() == 2)
        listed = block.num_dst if block.dst_rows is None else len(block.dst_rows)
        written = per_source + bool(settings.get("add"))  # which is read, too
        moved = per_edge * block.num_edges + per_destination * listed + written * block.num_src
        count_work(AGGREGATION, moved * rows.shape[1] * rows.element_size())
        getattr(self._kernel, name)(block, *arguments, **settings)

    return call


class CountingKernel(Kernel):
    """Another kernel, counted.

    Args:
        kernel: what does the work.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.name, self.operations = kernel.name, kernel.operations

    sum_forward, sum_backward = _counted("sum_forward"), _counted("sum_backward")
    max_forward, max_backward = _counted("max_forward"), _counted("max_backward")
    gat_forward, gat_backward = _counted("gat_forward"), _counted("gat_backward")
    gatv2_forward, gatv2_backward = _counted("gatv2_forward"), _counted("gatv2_backward")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return self._kernel.unavailable_reasons(device, dtype)

    def attention_records(self, *arguments: Any) -> Tensor:
        return self._kernel.attention_records(*arguments)

    def sum_autograd(self, *arguments: Any) -> Tensor:
        return self._kernel.sum_autograd(*arguments)

    def max_autograd(self, *arguments: Any) -> Tensor:
        return self._kernel.max_autograd(*arguments)

    def gat_autograd(self, *arguments: Any) -> Tensor:
        return self._kernel.gat_autograd(*arguments)

    def gatv2_autograd(self, *arguments: Any) -> Tensor:
        return self._kernel.gatv2_autograd(*arguments)
