"""What a step of propagation holds: nothing for backward, so the number of steps is of no matter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.in_process import fork_server
from tests.models.peak_of_model import CLASSES, TABLE, send_peak

pytestmark = pytest.mark.machine

FEW, MANY = 3, 15


def peak(name: str, **changes: Any) -> int:
    context = fork_server()
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=send_peak, args=(send, name, changes), daemon=True)
    process.start()
    send.close()
    with receive:
        found = int(receive.recv())
    process.join()
    return found


def test_the_peak_of_appnp_does_not_grow_with_its_steps() -> None:
    """Also where every step drops edges of its own. A table held by each of the twelve steps more would be twelve."""
    plain = {"num_layers": 1, "dropout": 0.0, "edge_dropout": 0.3}
    few, many = (peak("appnp", steps=steps, **plain) for steps in (FEW, MANY))
    assert few > 2 * TABLE and many - few < TABLE


def test_the_peak_of_gcnii_grows_by_two_tables_a_layer() -> None:
    """So the test above could fail."""
    few, many = (peak("gcnii", num_layers=layers, hidden=CLASSES, norm="none") for layers in (FEW, MANY))
    assert 1.9 < (many - few) / TABLE / (MANY - FEW) < 2.1
