"""What one process with all workers holds and moves where tables may lie on its disk, added up by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sargnn.memory.plan_parts import PartSizes
from sargnn.memory.plan_run import SpillPlan, WorldPlan, plan_spill
from sargnn.memory.plan_traffic import shape_of
from sargnn.memory.plan_worker import TERMS, Account, Runtime, WorkerPlan
from tests.parity import cases

_TERMS = {"runtime": 100, "graph": 30, "features": 10, "parameters": 5, "kept for backward": 200, "working set": 40}
_WORKER = WorkerPlan(0, 0, "layer 1 forward", dict.fromkeys(TERMS, 0) | _TERMS | {"communication": 6, "optimizer": 10})


@pytest.mark.parametrize(
    ("budget", "on_disk", "moved", "in_groups"),
    [(630, 60, 0, False), (400, 290, 5 * 230, False), (260, 430, 5 * 370, True), (120, 540, 5 * 480, True)],
)
def test_what_has_no_room_is_moved(budget: int, on_disk: int, moved: int, in_groups: bool) -> None:
    """Of two workers: 480 bytes of tables beside the 150 that always stay, the runtime once; 60 lie in mapped files."""
    plan = plan_spill(WorldPlan("sar", 2, [_WORKER], None, exact=True), num_edges=5, budget=budget)
    assert plan == SpillPlan(690, least=150 + 92 + 80 // 2 // 8, on_disk=on_disk, moved=moved, in_groups=in_groups)


def test_what_lasts_lies_in_a_file() -> None:
    """Of the same workers 12 bytes each of rows that are learned, and of their moments."""
    worker = dataclasses.replace(_WORKER, lasting=12)
    plan = plan_spill(WorldPlan("sar", 2, [worker], None, exact=True), num_edges=5, budget=400)
    assert plan == SpillPlan(690, least=126 + 92 + 80 // 2 // 8, on_disk=84 + 206, moved=5 * 206, in_groups=False)


@pytest.mark.parametrize(
    ("changes", "tables"), [({}, 3), ({"average": 0.9}, 4), ({"name": "custom", "target": "torch.optim:SGD"}, 1)]
)
def test_learned_rows_last_and_what_is_kept_of_them(changes: dict[str, Any], tables: int) -> None:
    """Of types without features: themselves, Adam's moments, averages."""
    config, graph = cases.run_config(cases.model_config("rgcn")), cases.graph_for("rgcn")
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, **changes))
    shape = shape_of(graph, config)
    learned = sum(graph.schema.count(t) for t, width in enumerate(shape.feature_widths) if not width)
    part = PartSizes(
        tuple(map(graph.schema.count, range(len(shape.feature_widths)))), (9,) * len(graph.schema.relations), 0, 0, 1, 1
    )
    account = Account(config, shape, graph.num_nodes)
    assert account.worker(part, Runtime(0, 0)).lasting == tables * learned * account.model.inputs.width * 4
