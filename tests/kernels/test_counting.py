"""What a profile counts of each kernel operation, row by row as its loops read and write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sargnn import spans
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.counting import CountingKernel
from sargnn.spans import AGGREGATION, REST, Spans, span

EDGES, SOURCES, LISTED, WIDTH = 5, 4, 3, 6
"""Of seven destinations three have an edge."""


class Nothing:
    """A kernel that does nothing, whatever it is asked for."""

    name, operations = "nothing", frozenset[str]()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **settings: None


# method -> whether it is given add=True, and the rows that it reads and writes.
COUNTS = {
    "sum_forward": [(False, EDGES + 2 * LISTED)],
    "sum_backward": [(False, EDGES + SOURCES), (True, EDGES + 2 * SOURCES)],
    "max_forward": [(False, EDGES + 4 * LISTED)],
    "max_backward": [(False, 2 * EDGES + SOURCES)],
    "gat_forward": [(False, EDGES + 2 * LISTED)],
    "gat_backward": [(False, EDGES + 2 * SOURCES)],
    "gatv2_forward": [(False, EDGES + 3 * LISTED)],
    # Destinations: z_j an edge; x, g and the error of x. Sources: x_i and g_i an edge; z and its error.
    "gatv2_backward": [(False, 3 * EDGES + 4 * LISTED + 2 * SOURCES)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", COUNTS)
def test_rows_of_each_operation(method: str, dtype: torch.dtype) -> None:
    src, dst = torch.tensor([0, 1, 1, 2, 3], dtype=torch.int32), torch.tensor([1, 1, 4, 4, 6], dtype=torch.int32)
    block = EdgeBlock(src, dst, SOURCES, 7)
    nothing: Any = Nothing()
    kernel: Kernel = CountingKernel(nothing)
    rows = torch.zeros(SOURCES, WIDTH, dtype=dtype)
    for add, expected in COUNTS[method]:
        recorder = Spans()
        spans.install(recorder)
        try:
            with span(REST):
                getattr(kernel, method)(block, None, rows, rows[0], **({"add": True} if add else {}))
        finally:
            spans.install(None)
        assert recorder.done[AGGREGATION] == expected * WIDTH * rows.element_size()
