"""Memory of attention does not grow with the edges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NODES, EDGES, HEADS, WIDTH = 20_000, 1_500_000, 8, 16


def peak(mode: str, edges: int) -> int:
    """Bytes above what is resident once graph and rows are there: so without the graph's own index arrays."""
    command = [sys.executable, "-m", "tests.engine.peak_of_step", mode, *map(str, (NODES, edges, HEADS, WIDTH))]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)["peak_bytes"])


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
def test_doubling_the_edges(mode: str) -> None:
    """At most a tenth of one number per added edge and head; autograd on DGL's operators keeps several."""
    growth = peak(mode, 2 * EDGES) - peak(mode, EDGES)
    allowed = 0.1 * 4 * EDGES * HEADS
    if mode == "sar":
        assert growth <= allowed
    else:
        assert growth > 10 * allowed  # so the test can fail
