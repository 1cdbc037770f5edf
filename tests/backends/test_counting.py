"""What a profile counts of each operation, row by row as its loops read and write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sargnn.backends import KERNELS
from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import CountedOperation, make_kernel
from sargnn.backends.operations import MovedRows, Operation
from sargnn.profile import AGGREGATION, REST, Profile

EDGES, SOURCES, LISTED, WIDTH = 5, 4, 3, 6
"""Of seven destinations three have an edge."""

# (operation, pass) -> whether it is given add=True, and the rows that it reads and writes.
COUNTS = {
    ("sum", "forward"): [(False, EDGES + 2 * LISTED)],
    ("sum", "backward"): [(False, EDGES + SOURCES), (True, EDGES + 2 * SOURCES)],
    ("max", "forward"): [(False, EDGES + 4 * LISTED)],
    ("max", "backward"): [(False, 2 * EDGES + SOURCES)],
    ("gat", "forward"): [(False, EDGES + 2 * LISTED)],
    ("gat", "backward"): [(False, EDGES + 2 * SOURCES)],
    ("gatv2", "forward"): [(False, EDGES + 3 * LISTED)],
    # Destinations: z_j an edge; x, g and the gradient of x. Sources: x_i and g_i an edge; z and its gradient.
    ("gatv2", "backward"): [(False, 3 * EDGES + 4 * LISTED + 2 * SOURCES)],
    ("dot", "forward"): [(False, 2 * EDGES + 3 * LISTED)],
    # Destinations: k_j and v_j an edge; q, g and the gradient of q. Sources: q_i and g_i an edge; k, v and their gradients.
    ("dot", "backward"): [(False, 4 * EDGES + 4 * LISTED + 4 * SOURCES)],
}


class Nothing(Operation):
    """An operation that does nothing, declared as another one is.

    Attributes:
        calls: the passes that were asked for.
    """

    def __init__(self, like: Operation) -> None:
        self.forward_rows, self.backward_rows = like.forward_rows, like.backward_rows  # type: ignore[misc]
        self.calls: list[str] = []

    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self.calls.append("forward")

    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self.calls.append("backward")


def block() -> EdgeBlock:
    src, dst = torch.tensor([0, 1, 1, 2, 3], dtype=torch.int32), torch.tensor([1, 1, 4, 4, 6], dtype=torch.int32)
    return EdgeBlock(src, dst, SOURCES, 7)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("operation", "direction"), COUNTS)
def test_rows_of_each_operation(operation: str, direction: str, dtype: torch.dtype, kernel: str) -> None:
    rows = torch.zeros(SOURCES, WIDTH, dtype=dtype)
    for add, expected in COUNTS[operation, direction]:
        nothing, profile = Nothing(make_kernel(kernel).operation(operation)), Profile()
        counted = CountedOperation(nothing, profile)
        with profile.span(REST):
            getattr(counted, direction)(block(), None, rows, rows[0], **({"add": True} if add else {}))
        assert nothing.calls == [direction]
        assert profile.done[AGGREGATION] == expected * WIDTH * rows.element_size()


def test_an_operation_of_any_kind_is_counted_as_it_declares() -> None:
    class Unknown(Nothing):
        def destination_records(self) -> str:
            return "its own"

    unknown = Unknown(Nothing(make_kernel("reference").operation("sum")))
    unknown.forward_rows = MovedRows(per_edge=100, per_destination=10, per_source=1)  # type: ignore[misc]
    profile = Profile()
    counted = CountedOperation(unknown, profile)
    with profile.span(REST):
        counted.forward(block(), torch.zeros(SOURCES, 1))
        counted.forward(block(), torch.zeros(SOURCES))  # no table of rows: nothing is known of its width
    assert profile.done[AGGREGATION] == 4 * (100 * EDGES + 10 * LISTED + SOURCES)
    assert counted.destination_records() == "its own"
