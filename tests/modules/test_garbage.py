"""What a layer computed goes when nobody needs it, not when Python next looks for cycles."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.choices import ModelSettings
from sargnn.config.models import CustomSettings
from sargnn.graph.dataset import Dataset
from tests.graphs import nasty_graph, with_weights
from tests.modules.attr_layers import with_attr
from tests.parity import cases

EXAMPLES = Path(__file__).parents[2] / "examples" / "layers"
FIELDS = """import dgl.function as fn
from torch import nn


class Net(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.lin = nn.Linear(in_width, num_outputs)

    def forward(self, graph, x):
        graph.ndata["h"] = self.lin(x)
        graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "o"))
        return graph.ndata["o"]
"""
"""Fields that stay with the graph."""


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
    leaves_none(model, nasty_graph(60) if own else cases.graph_for(name))


@pytest.mark.parametrize("carry", [with_weights, with_attr])
def test_nor_where_edges_carry_something(tmp_path: Path, carry: Callable[[Dataset], Dataset]) -> None:
    (tmp_path / "net.py").write_text(FIELDS)
    leaves_none(CustomSettings("custom", target=f"{tmp_path}/net.py:Net"), carry(nasty_graph(60)))


def leaves_none(model: ModelSettings, graph: Dataset) -> None:
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
