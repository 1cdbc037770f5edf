"""Which arguments of a user's constructor the data decide: those of a closed list of names, wherever they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.graph.schema import Relation, Schema
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.run.check import check_strategies
from sargnn.training.build import make_model

PLAIN = GraphShape(Schema.homogeneous(100), (5,), 3)
TYPED = GraphShape(
    Schema(("author", "paper"), (0, 40, 100), (Relation(0, "writes", 1), Relation(1, "cites", 1))), (0, 5), 3, labelled=1
)
SAGE = """from dgl.nn import SAGEConv
from torch import nn


class Net(nn.Module):
    def __init__(self, in_size, hid_size, out_size):
        super().__init__()
        self.one, self.two = SAGEConv(in_size, hid_size, "mean"), SAGEConv(hid_size, out_size, "gcn")

    def forward(self, graph, h):
        return self.two(graph, self.one(graph, h).relu())
"""
LINEAR = """from torch import nn


class Net(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        self.given = {names}
        self.linear = nn.Linear(5, 3)

    def forward(self, graph, h):
        return self.linear(h["paper"] if isinstance(h, dict) else h)
"""
IN = ("in_width", "in_size", "in_feats", "in_channels", "in_dim", "num_features")
OUT = ("num_outputs", "out_size", "out_feats", "out_channels", "out_dim", "num_classes", "n_classes")


def linear(arguments: str) -> str:
    """A module that keeps what it is given, in the order of its arguments."""
    names = [one.partition("=")[0].strip() for one in arguments.split(",") if one.strip() not in ("*", "/")]
    return LINEAR.format(arguments=arguments, names=f"({', '.join(names)},)")


def configured(folder: Path, text: str, *words: str) -> RunConfig:
    (folder / "net.py").write_text(text)
    return parse(compose_verb("train", ["model=custom", f"model.target={folder}/net.py:Net", *words]))


def make(folder: Path, text: str, *words: str, shape: GraphShape = PLAIN) -> Model:
    config = configured(folder, text, *words)
    check_strategies(config)
    return make_model(config, shape)


def test_the_example_of_dgl(tmp_path: Path) -> None:
    """Its hidden width stands where the number of outputs stands in other modules."""
    with pytest.raises(ConfigError, match=r"'Net' needs the argument 'hid_size'(.|\n)*add model\.args\.hid_size=VALUE"):
        make(tmp_path, SAGE)
    model = make(tmp_path, SAGE, "model.args.hid_size=32")
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    assert shapes["module.one.fc_neigh.weight"] == (32, 5) and shapes["module.two.fc_neigh.weight"] == (3, 32)
    assert "from the data: in_size=5, out_size=3" in model.remarks()


@pytest.mark.parametrize("number", range(7))
def test_every_name_of_the_list_in_any_place(number: int, tmp_path: Path) -> None:
    width, outputs = IN[number % len(IN)], OUT[number]
    model = make(tmp_path, linear(f"{outputs}, hidden=7, *, {width}"))
    assert model.module.given == (3, 7, 5)  # type: ignore[union-attr]


def test_types_beside_them(tmp_path: Path) -> None:
    model = make(tmp_path, linear("in_feats, etypes, n_classes, ntypes"), shape=TYPED)
    width, relations, outputs, types = model.module.given  # type: ignore[union-attr,misc]
    assert (width, outputs, types) == (5, 3, ["author", "paper"]) and len(relations) == 2
    assert "from the data: in_feats=5, etypes, n_classes=3, ntypes" in model.remarks()


def test_any_of_them_may_be_given(tmp_path: Path) -> None:
    model = make(tmp_path, linear("in_dim, n_classes, out_dim=None"), "model.args.in_dim=9", "model.args.out_dim=4")
    assert model.module.given == (9, 3, 4)  # type: ignore[union-attr]
    assert "from the data: n_classes=3" in model.remarks()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("a, b, heads=2", r"'Net' needs the arguments 'a' and 'b'(.|\n)*model\.args\.a=VALUE model\.args\.b=VALUE"),
        ("in_size, labels", r"needs the argument 'labels'(.|\n)*num_outputs, out_size, .*n_classes"),
        ("in_size, out_dim, n_classes", r"'out_dim' and 'n_classes'(.|\n)*model\.args\.out_dim=VALUE"),
    ],
)
def test_what_the_data_do_not_decide(arguments: str, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_strategies(configured(tmp_path, linear(arguments)))
    assert re.search(wanted, str(caught.value)), str(caught.value)
    assert f"{tmp_path}/net.py line 4" in str(caught.value)
