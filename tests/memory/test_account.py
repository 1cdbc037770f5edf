"""What halo rows take, counted by hand."""

from __future__ import annotations

from sargnn.engine.modes.base import Held
from sargnn.memory.account_step import INPUTS, HaloBytes, LayerHalo
from sargnn.plan.sizes import Sizes


def test_halo_rows_that_layers_keep_add_up() -> None:
    """While a layer runs: what it and those before it keep until backward, what it needs itself, and the exchange's buffers."""
    layers = (
        LayerHalo(Held(kept=8, forward=1, backward=3), travels=4),
        LayerHalo(Held(kept=16, forward=2, backward=5), Held(kept=7), travels=8, plan=1),
        LayerHalo(Held(kept=4, forward=100, backward=50), travels=2, plan=2),
    )
    own = {("rows", layer, -1): 20 for layer in range(3)}
    halo = HaloBytes(layers, most_rows=50, depth=1, copies=2)
    sizes = Sizes(own, (), (10, 100, 1000))
    found = halo.by_phase(sizes)
    buffers = 2 * 3 * 50 * 8  # of the second layer: three messages of at most 50 rows each way
    first, second, third = 10 * 8, 100 * 16 + 20 * 7, 1000 * 4
    assert found["layer 1 forward"] == first + 10 * 1
    assert found["layer 2 forward"] == first + second + 100 * 2
    assert found["layer 2 backward"] == first + second + 100 * 5
    assert found["layer 3 forward"] == first + second + third + 1000 * 100
    assert found["layer 3 backward"] == first + second + third + 1000 * 50
    assert found[""] == found["layer 3 forward"] and found[INPUTS] == 0
    assert halo.buffers(sizes) == buffers
