"""Modules that cannot be exact on several workers, each found with its line; modules that are, in every mode."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.partition.cut import parts_of
from sargnn.training.build import make_trainer
from sargnn.training.compare_worlds import Outcome, compare_records
from sargnn.training.record_worlds import Recorder, Records, load_records
from tests.graphs import assign, nasty_graph, typed_graph
from tests.parity.covering import spread
from tests.pool import pool

GRAPHS = {"plain": nasty_graph(120), "typed": typed_graph()}
LAYERS = Path(__file__).parents[3] / "examples" / "layers"
MODULE = """import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def copy(edges):
    return {{"m": edges.src["h"]}}


def add(nodes):
    return {{"s": nodes.mailbox["m"].sum(1)}}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + grad.mean(0)


class Net(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.one, self.two = nn.Linear(in_width, 6), nn.Linear(6, num_outputs)
        self.drop, self.norm = nn.Dropout(0.3), nn.BatchNorm1d(6)
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("rows", torch.zeros(()))
        self.calls = 0

    def forward(self, graph, x):
        graph.ndata["h"] = h = self.one(x)
        graph.update_all(copy, add)
        h = F.relu(self.norm(graph.ndata["s"] + h))
{body}
        return self.two(self.drop(h))
"""
WRONG = {
    "random numbers of numpy": ("h = h * np.random.rand()  # here", "mul", "numpy"),
    "random numbers of Python": ("k = random.random()\nh = h + k  # here", "add", "Python"),
    "a counter of numpy's": (
        "self.calls += np.random.rand() if self.calls else 1\nh = h * self.calls  # here", "mul", "the steps before",
    ),
}  # fmt: skip
REFUSED = {
    "a permutation": ("h = h * torch.randperm(len(h))[:, None]", "randperm draws numbers"),
    "row numbers": ("h = h * torch.arange(len(h))[:, None]", "'arange' counts"),
    "a hook": ("if h.requires_grad:\n    h.register_hook(lambda g: g - g.mean(0))", "A hook on rows"),
    "a backward of its own": ("h = Twice.apply(h)", "'Twice'"),
    "an evaluation": ("h = h if self.training else h * torch.arange(len(h))[:, None]", "'arange' counts"),
    "rows in pieces": ("for one in h.split(50):\n    F.relu(one)", "by their number"),
    "numpy": ("h = h + float(h.detach().numpy().mean())", "'numpy' gives numbers"),
}
RIGHT = {
    "a mean over rows": "h = h - h.mean(0)",
    "a norm by hand": "m = h.mean(dim=0, keepdim=True)\nh = (h - m) / h.std(0)",
    "a mean by hand": "h = h - h.sum(0) / h.shape[0]",
    "a sum": "h = h / (1 + h.sum())",
    "a softmax over rows": "h = h * torch.softmax(h, dim=0)",
    "a product over rows": "h = h @ (h.t() @ h)",
    "a pooling": "h = h + h.max(0).values",
    "state of the rows": "self.seen += h.detach().sum(0)\nif self.calls:\n    h = h + self.seen\nself.calls += 1",
    "zeros for the rows": "h = h + torch.zeros(len(h), 6, dtype=h.dtype) + h.new_ones(h.shape[0], 1)",
    "a draw of a fixed shape": "h = h * torch.rand(6, dtype=h.dtype)",
    "how many rows": "h = h / len(h)",
    "a branch": "if len(h) > 100:\n    h = h * 2",
    "random numbers by rows": "h = h + torch.randn(len(h), 6, dtype=h.dtype) * torch.rand_like(h)",
    "a number of the rows": "self.rows.data = torch.tensor(float(len(h)))",
    "a mask of rows": "h = h * (h[:, :1] > 0)",
    "questions about all rows": "h = h * 2 if bool((graph.in_degrees() == 0).any()) else h",
    "transposed": "h = torch.stack([h, h * 2]).transpose(0, 1).reshape(len(h), -1)[:, :6]",
}
TOGETHER: list[Any] = [
    ("a mean over rows", "a pooling", "random numbers by rows"),
    ("a norm by hand", "zeros for the rows", "a mask of rows"),
    ("a mean by hand", "a number of the rows", "transposed"),
    ("a sum", "a draw of a fixed shape", "questions about all rows"),
    ("a softmax over rows", "how many rows", "a branch"),
    ("a product over rows", "state of the rows"),  # whose sum is no zero up to rounding, as that behind a mean
]
"""All of them, several in one module."""
ALONE: list[Any] = [pytest.param((case,), marks=pytest.mark.long) for case in RIGHT]
assert sorted(case for cases in TOGETHER for case in cases) == sorted(RIGHT)


def configured(*words: str) -> RunConfig:
    plain = ["precision=fp64", "tracking=none", "threads=1", "optim.lr=0.01", "world=2"]
    return parse(compose_verb("train", [*plain, *words]))


def record(group: Group, config: RunConfig, graph: str, folder: str) -> Records:
    """What one worker notes; through a file, as in the command."""
    dataset: Dataset = GRAPHS[graph]
    part = list(parts_of(dataset, assign(dataset, "random", group.world), group.world))[group.rank]
    recorder = Recorder(make_trainer(config, part, dataset.num_classes, group))
    recorder.train(3, Path(folder), follow=group.world > 1)
    path = Path(folder) / f"{group.world}_{group.rank}.npz"
    recorder.save(path)
    return load_records(path)


def outcome(config: RunConfig, graph: str = "plain") -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        one = record(Group.single(), config, graph, folder)
        return compare_records(one, pool(2)(record, config, graph, folder), config.precision)


def module(folder: Path, body: str) -> str:
    text = MODULE.format(body="\n".join(f"        {line}" for line in body.splitlines()))
    path = folder / "net.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_exact_is_found(case: str, tmp_path: Path) -> None:
    body, what, hint = WRONG[case]
    path = module(tmp_path, body)
    found = outcome(configured("model=custom", f"model.target={path}:Net")).first
    assert found is not None
    assert found.entry.what.startswith(what) and hint in found.hint, found
    lines = [number for number, line in enumerate(Path(path).read_text().splitlines(), start=1) if "# here" in line]
    if lines:
        assert found.entry.place == f"{path} line {lines[0]}", found
    assert found.entry.step == (2 if case == "a counter of numpy's" else 1), found


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused(case: str, tmp_path: Path) -> None:
    body, wanted = REFUSED[case]
    path = module(tmp_path, body)
    with pytest.raises((ConfigError, AssertionError), match=rf"{wanted}(.|\n)*net.py line"):
        outcome(configured("model=custom", f"model.target={path}:Net"))


@pytest.mark.parametrize("cases", TOGETHER + ALONE, ids="; ".join)
def test_what_is_exact_is_left_alone(cases: tuple[str, ...], tmp_path: Path) -> None:
    path = module(tmp_path, "\n".join(RIGHT[case] for case in cases))
    assert outcome(configured("model=custom", f"model.target={path}:Net")).first is None


STACKS = {
    "sage": [f"model.target={LAYERS}/dgl_sage.py:Sage", "model.args.hidden=6"],
    "gat": [
        f"model.target={LAYERS}/dgl_gat.py:Gat",
        "model.args.hidden=3",
        "model.args.attn_dropout=0.2",
        "dataset.add_self_loops=true",
    ],
}


@pytest.mark.parametrize(("mode", "mfg", "stack"), spread([("sar", "true"), ("domain_parallel", "false")], list(STACKS)))
def test_stacks_of_dgl_agree(mode: str, mfg: str, stack: str) -> None:
    found = outcome(configured("model=custom", *STACKS[stack], f"mode={mode}", f"mfg={mfg}", "labels=masked"))
    assert found.first is None and found.compared > 150


@pytest.mark.parametrize(
    ("words", "graph"),
    [(["model=sage", "model.hidden=6", "model.norm=batch"], "plain"), (["model=rgcn", "model.hidden=6", "mfg=true"], "typed")],
    ids=["sage", "rgcn"],
)
def test_models_of_the_package_agree(words: list[str], graph: str) -> None:
    found = outcome(configured(*words), graph)
    assert found.first is None and found.compared > 30


def test_fp32_allows_for_rounding(tmp_path: Path) -> None:
    words = ["model=custom", *STACKS["sage"], "precision=fp32", "mode=one_shot"]
    assert outcome(configured(*words)).first is None
    path = module(tmp_path, WRONG["random numbers of numpy"][0])
    found = outcome(configured("model=custom", f"model.target={path}:Net", "precision=fp32")).first
    assert found is not None and found.entry.what == "mul"


TYPED = """import dgl.function as fn
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, etypes):
        super().__init__()
        self.weights = nn.ModuleDict({name: nn.Linear(in_width, 6) for _, name, _ in etypes})
        self.last = nn.Linear(6, num_outputs)

    def forward(self, graph, x):
        for name in x:
            graph.nodes[name].data["x"] = x[name]
        for etype in graph.canonical_etypes:
            graph.nodes[etype[0]].data[etype[1]] = self.weights[etype[1]](x[etype[0]])
        functions = {one: (fn.copy_u(one[1], "m"), fn.mean("m", "h")) for one in graph.canonical_etypes}
        graph.multi_update_all(functions, "sum")
        graph.apply_edges(fn.u_dot_v("x", "x", "w"), etype="cites")
        w = graph.edges["cites"].data["w"].tanh()
        h = graph.nodes["paper"].data["h"]
        {body}
        return self.last(torch.relu(h))
"""


@pytest.mark.parametrize(
    ("body", "wrong"),
    [("h = h + 1", False), ("h = h + torch.softmax(w + 0, 0).mean() / w.shape[0]", False), ("h = h + np.random.rand()", True)],
)
def test_types_and_edges(body: str, wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TYPED.replace("{body}", body))
    words = ["model=custom", f"model.target={tmp_path}/net.py:Net", "model.embedding=5"]
    found = outcome(configured(*words), "typed").first
    assert (found is not None) == wrong
    if found is not None:
        assert (found.entry.what, found.entry.kind) == ("add", "nodes")


JOINED = """import torch
from dgl.nn.pytorch import RelGraphConv
from torch import nn


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, etypes):
        super().__init__()
        self.one = RelGraphConv(in_width, 6, len(etypes))
        self.two = RelGraphConv(6, num_outputs, len(etypes))
        self.drop = nn.Dropout(0.5)

    def forward(self, graph, x):
        g = graph.to_homogeneous()
        h = torch.cat([x[t] for t in graph.ntypes])
        h = torch.relu(self.one(g, h, g.edata["_TYPE"]))
        h = self.two(g, self.drop(h), g.edata["_TYPE"])
        return h[g.ndata["_TYPE"] == graph.ntypes.index("paper")]
"""


def test_all_types_in_one_table(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(JOINED)
    words = ["model=custom", f"model.target={tmp_path}/net.py:Net", "model.embedding=5"]
    found = outcome(configured(*words), "typed")
    assert found.first is None and found.compared > 60
