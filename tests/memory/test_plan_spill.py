"""What one process with all workers holds and moves where tables may lie on its disk, added up by hand."""

from __future__ import annotations

import pytest

from sargnn.memory.plan_run import SpillPlan, WorldPlan, plan_spill
from sargnn.memory.plan_worker import TERMS, WorkerPlan

_TERMS = {"runtime": 100, "graph": 30, "features": 10, "parameters": 5, "kept for backward": 200, "working set": 40}
_WORKER = WorkerPlan(0, 0, "layer 1 forward", dict.fromkeys(TERMS, 0) | _TERMS | {"communication": 6, "optimizer": 10})


@pytest.mark.parametrize(
    ("budget", "on_disk", "moved", "in_groups"),
    [(630, 60, 0, False), (400, 290, 6 * 230, False), (260, 430, 9 * 370, True), (120, 540, 9 * 480, True)],
)
def test_what_has_no_room_is_moved(budget: int, on_disk: int, moved: int, in_groups: bool) -> None:
    """Of two workers: 480 bytes of tables beside the 150 that always stay, the runtime once; 60 lie in mapped files."""
    plan = plan_spill(WorldPlan("sar", 2, [_WORKER], None, exact=True), num_edges=5, budget=budget)
    assert plan == SpillPlan(690, least=150 + 92 + 80 // 2 // 8, on_disk=on_disk, moved=moved, in_groups=in_groups)
