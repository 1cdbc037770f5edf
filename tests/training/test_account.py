"""What halo rows take, counted by hand."""

from __future__ import annotations

from sargnn.training.account.step import INPUTS, HaloBytes


def test_halo_rows_that_layers_keep_add_up() -> None:
    """While a layer runs: what it and those before it keep until backward, what it needs itself, and the exchange's buffers."""
    halo = HaloBytes(kept=(8, 16, 4), running=(1, 2, 100), travelling=(4, 8, 2), most_rows=50, buffers=4, copies=2)
    rows = [10, 100, 1000]
    buffers = 4 * 50 * 8  # of the second layer: four messages of at most 50 rows
    found = halo.by_phase(rows, [0, 0, 0])
    assert found["layer 1 forward"] == found["layer 1 backward"] == 10 * (8 + 1) + buffers
    assert found["layer 2 forward"] == found["layer 2 backward"] == 10 * 8 + 100 * (16 + 2) + buffers
    assert found["layer 3 forward"] == found["layer 3 backward"] == 10 * 8 + 100 * 16 + 1000 * (4 + 100) + buffers
    assert found[""] == halo.peak(rows) == found["layer 3 forward"] and found[INPUTS] == buffers
