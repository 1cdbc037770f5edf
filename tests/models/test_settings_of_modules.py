"""Settings that do not go together with a module of the user's are refused before its graph is cut."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.choices import KernelConfig
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError, KernelError
from sargnn.graph.schema import Schema
from sargnn.memory import budget as budget_module
from sargnn.models.inputs import GraphShape
from sargnn.training.build import make_model
from tests.graphs import nasty_graph
from tests.parity import cases

SHAPE = GraphShape(Schema.homogeneous(100), (5,), 3)
MODULE = """from dgl.nn import GATConv, SAGEConv
from torch import nn


class Net(nn.Module):
    def __init__(self, in_size, out_size, attention=False, layers=2):
        super().__init__()
        ends = [(in_size, 3), (3, out_size)] if layers > 1 else [(in_size, out_size)]
        if attention:
            self.layers = nn.ModuleList(GATConv(a, b, 1, allow_zero_in_degree=True) for a, b in ends)
        else:
            self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in ends)

    def forward(self, graph, x):
        for layer in self.layers:
            x = layer(graph, x).view(graph.num_dst_nodes(), -1)
        return x
"""


def configured(folder: Path, *words: str) -> RunConfig:
    (folder / "net.py").write_text(MODULE)
    return parse(compose_verb("train", ["model=custom", f"model.target={folder}/net.py:Net", *words]))


def test_scores_are_kept_of_attention_only(tmp_path: Path) -> None:
    keeps = ("mode=no_remat", "mode.keep=all")
    make_model(configured(tmp_path, *keeps, "model.args.attention=true"), SHAPE)
    with pytest.raises(ConfigError, match=r"no attention(.|\n)*net.py line 14(.|\n)*mode.keep=rows"):
        make_model(configured(tmp_path, *keeps), SHAPE)


def test_a_kernel_that_does_not_serve_it(tmp_path: Path) -> None:
    config = configured(tmp_path, "model.args.attention=true")
    target = f"{Path(cases.__file__).parent / 'toys' / 'toy_kernel.py'}:DenseSums"
    with pytest.raises(KernelError, match="gat"):
        make_model(dataclasses.replace(config, kernel=KernelConfig("toy", target=target)), SHAPE)


@pytest.mark.parametrize(("layers", "refused"), [(2, True), (1, False)])
def test_evaluations_in_groups_need_blocks(layers: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second layer of a group would miss rows, after the first epoch."""

    def fits(self: budget_module.Budget, planned: tuple[int, ...], what: str) -> bool:
        return what != "evaluation in one piece"

    monkeypatch.setattr(budget_module.Budget, "fits", fits)
    config = configured(tmp_path, "memory_budget=900GB", "world=1", f"model.args.layers={layers}")
    if refused:
        with pytest.raises(ConfigError, match=r"graph\.blocks"):
            cases.trainer_of(Group.single(), config, nasty_graph())
    else:
        assert len(cases.trainer_of(Group.single(), config, nasty_graph()).evaluator.views) == 2
