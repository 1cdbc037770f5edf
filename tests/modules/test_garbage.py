"""What a layer computed goes when nobody needs it, not when Python next looks for cycles."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.models import CustomSettings
from tests.graphs import nasty_graph
from tests.parity import cases

EXAMPLES = Path(__file__).parents[2] / "examples" / "layers"


@pytest.mark.parametrize(
    "name",
    [
        "sage",
        "gat",
        "rgcn",
        *sorted(f"{path.stem}:Net" for path in EXAMPLES.glob("written.py")),
        "pyg_flow:Net",
        "pyg_gcn:DeepGCN",
    ],
)
def test_steps_leave_no_tensors_in_cycles(name: str) -> None:
    own = ":" in name
    model = CustomSettings("custom", target=f"{EXAMPLES}/{name.replace(':', '.py:')}") if own else cases.model_config(name)
    graph = nasty_graph(60) if own else cases.graph_for(name)
    trainer = cases.trainer_of(Group.single(), cases.run_config(model, precision="fp32", epochs=3), graph)
    trainer.loop.train_epoch(0)
    gc.collect()
    gc.disable()
    try:
        trainer.loop.train_epoch(1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [tuple(one.shape) for one in gc.garbage if isinstance(one, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
