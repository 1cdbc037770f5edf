"""What is wrong with a user's module is said in one message with the user's file and line, before any worker starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from tests.in_process import sargnn_here
from tests.models.wrong import PLAIN, TYPED, check, configured, make

MODULE = """import torch
from torch import nn


def copy(edges):
    return {{"m": edges.src["h"]}}


def add(nodes):
    return {{"s": nodes.mailbox["m"].sum(1)}}


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, hidden=8, depth=2):
        super().__init__()
        self.linear = nn.Linear(in_width, num_outputs)

    def forward(self, graph, x):{head}
{body}
"""
GOOD = 'graph.ndata["h"] = x\ngraph.update_all(copy, add)\nreturn self.linear(graph.ndata["s"])'


def module(body: str) -> str:
    """A module whose forward is this; where the message must point, ``# here`` stands, or nowhere: at ``def forward``."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return MODULE.format(body=lines, head="" if "# here" in body else "  # here")


def whole(text: str) -> str:
    return f"from torch import nn\n\n\n{text}\n"


WRONG: dict[str, tuple[str, str]] = {
    "no forward": (
        whole("class Net(nn.Module):  # here\n    def __init__(self, in_size, out_size):\n        super().__init__()"),
        "'Net' has no forward.",
    ),
    "another class": (whole("class Nets(nn.Module):\n    pass"), "names nothing in"),
    "a class that is no module": (
        whole("class Net:\n    def __init__(self, in_size, out_size):\n        pass"), "no class of modules",
    ),
    "a module that is made": (whole("Net = nn.Linear(2, 3)"), "no class of modules"),
    "a number": (whole("Net = 3"), "no class of modules"),
    "a function that returns none": (whole("def Net(in_size):  # here\n    return None"), "'Net' returns no torch.nn.Module"),
    "a syntax error": ("class Net(:  # here\n    pass\n", "cannot be loaded: SyntaxError"),
    "an error on loading": ("import torch\ntorch.nothing  # here\n", "cannot be loaded: AttributeError"),
    "a constructor that fails": (
        whole("class Net(nn.Module):\n    def __init__(self, in_size):\n        super().__init__()\n        1 / 0  # here"),
        "constructor failed: ZeroDivisionError: division by zero",
    ),
    "a constructor that needs more": (
        whole("class Net(nn.Module):  # here\n    def __init__(self, in_size, out_size, heads):\n        super().__init__()"),
        "'Net' needs the argument 'heads'.",
    ),
    "parameters that differ": (
        "import itertools\n" + MODULE.format(head="  # here", body="        return self.linear(x)").replace(
            "def copy", "count = itertools.count()\n\n\ndef copy"
        ).replace("num_outputs)\n\n", "num_outputs)\n        nn.init.constant_(self.linear.bias, next(count))\n\n"),
        "has other parameters",
    ),
    "a forward that takes one": (
        MODULE.format(head="  # here", body="        return x").replace("self, graph, x", "self, x"),
        "forward must take",
    ),
    "a forward that takes three": (
        MODULE.format(head="  # here", body="        return x").replace("self, graph, x", "self, graph, x, y"),
        "forward must take",
    ),
    "none": (module("self.linear(x)"), "returns no tensor."),
    "a list": (module("return [self.linear(x)]"), "returns no tensor."),
    "another width": (module("return x"), "another width"),
    "heads": (module("return self.linear(x)[:, None]"), "another width"),
    "fewer rows": (module("return self.linear(x)[x[:, 0] > 9]"), "one row for each node"),
    "one row": (module("return self.linear(x).mean(0, keepdim=True)"), "one row for each node"),
    "rows in another order": (module("return self.linear(x).flip(0)"), "in their order"),
    "rows of nobody": (module("return self.linear(torch.ones(6, x.shape[1]))"), "without the graph's rows"),
    "a field in another order": (
        module('graph.ndata["h"] = x.flip(0)  # here\nreturn self.linear(x)'), "no table of",
    ),
    "another precision": (module("return self.linear(x).half()"), "another precision"),
    "cut off": (module("return self.linear(x).detach()"), "none of its parameters"),
    "an exception": (module('raise KeyError("k")  # here'), "forward failed: KeyError: 'k'"),
    "a name that is not there": (module("return nothing  # here"), "forward failed: NameError"),
    "shapes that do not fit": (module("return self.linear(x.T)  # here"), "forward failed: RuntimeError"),
    "an exit": (module("raise SystemExit(3)  # here"), "forward failed: SystemExit: 3"),
    "a backward that fails": (
        module("x = self.linear(x)\nx.register_hook(lambda g: g / None)  # here\nreturn x"),
        "backward failed: TypeError",
    ),
    "a write to the rows": (module("x += 1  # here\nreturn self.linear(x)"), "write to its input"),
    "a hidden write to the rows": (
        module("x.numpy()[0] = 1  # here\nreturn self.linear(x)"), "'numpy' gives numbers",
    ),
    "a write to a field": (
        module('graph.ndata["h"] = x\ngraph.ndata["h"].mul_(2)  # here\nreturn self.linear(x)'), "write to its input",
    ),
    "a field that is not there": (module('return graph.ndata["hh"]  # here'), "field 'hh'"),
    "a field of another length": (
        module('graph.ndata["h"] = x[x[:, 0] > 9]  # here'), "The field 'h'",
    ),
    "a field that is no tensor": (module('graph.ndata["h"] = 3  # here'), "'h' is no tensor"),
    "a message of another length": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: {"m": e.src["h"][:2]}, add)  # here'),
        "row per edge",
    ),
    "a message that is no mapping": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: e.src["h"], add)  # here'), "gives no messages",
    ),
    "a message of a field that is not there": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: {"m": e.src["k"]}, add)  # here'), "'k'",
    ),
    "a reduce of a message that is not there": (
        module('graph.ndata["h"] = x\ngraph.update_all(copy, lambda n: {"s": n.mailbox["k"].sum(1)})  # here'), "'k'",
    ),
    "a reduce that is no mapping": (
        module('graph.ndata["h"] = x\ngraph.update_all(copy, lambda n: n.mailbox["m"].sum(1))  # here'), "",
    ),
    "a message of a number that is read": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: {"m": e.src["h"] * float(e.src["h"].max())}, add)  # here'),
        "reads numbers of some edges",
    ),
    "a message of the larger half": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: {"m": e.src["h"] * e.src["h"].max()}, add)  # here'),
        "depends on other edges",
    ),
    "a message of rows beside the fields": (
        module('graph.ndata["h"] = x\ngraph.update_all(lambda e: {"m": e.src["h"] * x.mean(0)}, add)  # here'),
        "reads rows that are no field",
    ),
    "a reduce over nodes": (
        module('graph.ndata["h"] = x\ngraph.update_all(copy, lambda n: {"s": n.mailbox["m"].sum(1).softmax(0)})  # here'),
        "folds over nodes",
    ),
    "a reduce by how many nodes there are": (
        module('graph.ndata["h"] = x\ngraph.update_all(copy, lambda n: {"s": n.mailbox["m"].sum(1) / n.batch_size()})  # here'),
        "folds over nodes",
    ),
    "degrees of some nodes": (module("return self.linear(x) * graph.in_degrees([1, 2])[0]  # here"), "by their numbers"),
    "a function of some edges": (
        module('graph.ndata["h"] = x\ngraph.apply_edges(lambda e: {"m": e.src["h"]}, edges=[0])  # here'), "by their numbers",
    ),
    "a function of some nodes": (
        module('graph.ndata["h"] = x\ngraph.apply_nodes(lambda n: {"h": n.data["h"]}, [0])  # here'), "by their numbers",
    ),
    "something a graph does not have": (module("graph.adj()  # here"), "no 'adj'"),
    "self-loops": (
        module("import dgl\ngraph = dgl.add_self_loop(graph)  # here\nreturn x"), "dataset.add_self_loops=true",
    ),
    "features of the data": (module('return self.linear(graph.ndata["feat"])  # here'), "what forward gets"),
    "a graph that is shown": (
        module("raise ValueError(graph)  # here"), "ShardedGraph(this worker's: 6 '_N' nodes, 12 '_E' edges into 6 '_N' nodes",
    ),
    "random numbers for nodes": (
        module("return self.linear(x) * torch.randperm(graph.num_nodes())[:, None]  # here"),
        "randperm draws numbers",
    ),
    "rows by number": (module("return self.linear(x[[1, 0]])  # here"), "by their number"),
    "a checkpoint": (
        module("from torch.utils.checkpoint import checkpoint\nreturn checkpoint(self.linear, x, use_reentrant=False)  # here"),
        "torch.utils.checkpoint",
    ),
    "a reentrant checkpoint": (
        module(
            "import torch.utils.checkpoint as c\nx = x.clone().requires_grad_(torch.is_grad_enabled())\n"
            "def f(y):\n    return self.linear(y)\nreturn c.checkpoint(f, x, use_reentrant=True)  # here"
        ),
        "torch.utils.checkpoint",
    ),
    "random numbers": (module("return self.linear(torch.poisson(x.abs()))  # here"), "poisson draws numbers"),
}  # fmt: skip
WRONG_TYPED: dict[str, tuple[str, str]] = {
    "no such relation": (module('graph["likes"]  # here'), "likes"),
    "no rows of the labelled type": (
        module('return {"author": self.linear(x["author"])}'), "labelled node type 'paper'",
    ),
    "the rows of another type": (module('return self.linear(x["author"])'), "something else"),
    "all rows in one": (
        module('return self.linear(torch.cat([x["author"], x["paper"]]))'), "one row for each node",
    ),
    "a mapping as rows": (module("return self.linear(x)  # here"), "forward failed: TypeError"),
}  # fmt: skip
ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "an argument that is not there": (["model.args.hiden=3"], "no argument 'hiden'"),
    "a width of one's own": (["model.args.in_width=3"], "forward failed: RuntimeError"),
    "a name that is no text": (["model.args.hidden={1: 2}"], "'model.args.hidden'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_module(case: str, tmp_path: Path) -> None:
    text, wanted = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path, text), PLAIN)
    check(caught.value, tmp_path, text, wanted)


@pytest.mark.parametrize("case", WRONG_TYPED)
def test_a_wrong_module_for_types(case: str, tmp_path: Path) -> None:
    text, wanted = WRONG_TYPED[case]
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path, text), TYPED)
    check(caught.value, tmp_path, text, wanted)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(case: str, tmp_path: Path) -> None:
    words, wanted = ARGUMENTS[case]
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        make(configured(tmp_path, module(GOOD), *words), PLAIN)


def test_the_right_module_is_none_of_these(tmp_path: Path) -> None:
    make(configured(tmp_path, module(GOOD), "model.args.hidden=3", "precision=fp64", "world=3"), PLAIN)
    (tmp_path / "blocks").mkdir()  # a file is loaded once in a process
    make(configured(tmp_path / "blocks", module(GOOD.replace("ndata", "dstdata").replace("dst", "src", 1)), "mfg=true"), PLAIN)
    assert len(WRONG) + len(WRONG_TYPED) + len(ARGUMENTS) >= 40


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["model.target=net.py:Net", "model.args.hiden=3"], "allowed: model.args.hidden"),
        (["model.target=no.py:Net"], "no.py"),
        (["model.target=net.py:Net"], "net.py line"),
        ([], "The setting 'model.target' must be given."),
    ],
)
def test_the_command_says_it_once_and_makes_nothing(words: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(module("return x"))
    done = sargnn_here(tmp_path, "train", "model=custom", *words, "dataset.num_nodes=200", "tracking=none")
    assert done.returncode == 1 and wanted in done.stderr and done.stderr.count("sargnn: ") == 1, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists() and "partition" not in done.stderr
