"""Nodes without an edge into them, and what a layer asks of a graph that is not there: said before a graph is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.graph.examine_edges import ALL_RELATIONS, nodes_without_edges
from sargnn.run.check import check_graph
from sargnn.sources.prepare import prepare_dataset
from tests.graphs import nasty_graph, typed_graph

MODULE = """import dgl.nn as gnn
from torch import nn


class Net(nn.Module):
    def __init__(self, in_size, out_size, allow=False):
        super().__init__()
        self.conv = gnn.{layer}

    def forward(self, graph, x):
        return self.conv(graph, x).view(len(x), -1)  # here
"""
GRAPHS = {"plain": nasty_graph(), "typed": typed_graph()}
LAYERS = {
    "GraphConv": "GraphConv(in_size, out_size, allow_zero_in_degree=allow)",
    "GATConv": "GATConv(in_size, out_size, 1, allow_zero_in_degree=allow)",
    "EdgeConv": "EdgeConv(in_size, out_size, allow_zero_in_degree=allow)",
}
TYPED = """import dgl.nn as gnn
from torch import nn


class Net(nn.Module):
    def __init__(self, in_size, out_size):
        super().__init__()
        self.conv = gnn.GraphConv(in_size, out_size, norm="right")

    def forward(self, graph, x):
        return self.conv(graph["cites"], x["paper"])  # here
"""


def configured(folder: Path, text: str, *words: str) -> RunConfig:
    (folder / "net.py").write_text(text)
    module = ["model=custom", f"model.target={folder}/net.py:Net", f"store_dir={folder}/stores"]
    return parse(compose_verb("train", [*module, *words]))


SMALL = ("dataset.num_nodes=60", "dataset.mean_degree=2")


def check(config: RunConfig) -> None:
    check_graph(config, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_refuses_them_is_found_before_workers_start(layer: str, tmp_path: Path) -> None:
    text = MODULE.format(layer=LAYERS[layer])
    with pytest.raises(ConfigError) as caught:
        check(configured(tmp_path, text, *SMALL))
    said = str(caught.value)
    assert "0-in-degree nodes" in said and f"{tmp_path}/net.py line 11" in said
    assert "dataset.add_self_loops=true" in said and "allow_zero_in_degree=True" in said
    assert "without an edge" in said


def test_what_does_not_meet_them_is_not_refused(tmp_path: Path) -> None:
    text = MODULE.format(layer=LAYERS["GraphConv"])
    check(configured(tmp_path, text, *SMALL, "dataset.add_self_loops=true"))
    check(configured(tmp_path, text, *SMALL, "model.args.allow=true"))
    check(configured(tmp_path, text, "dataset.num_nodes=60", "dataset.mean_degree=40"))


def test_no_self_loops_are_offered_for_types(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0-in-degree(.|\n)*allow_zero_in_degree=True(.|\n)*'cites'") as caught:
        check(configured(tmp_path, TYPED, "dataset=mag_like", "dataset.scale=0.001"))
    assert "add_self_loops" not in str(caught.value)


@pytest.mark.parametrize("name", GRAPHS)
def test_which_nodes_lack_edges(name: str) -> None:
    dataset = GRAPHS[name]
    schema, destinations = dataset.schema, np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    relation = np.zeros(len(destinations), np.uint8) if dataset.relation is None else dataset.relation
    for wanted in (None, dataset.split > 0):
        expected: dict[int, int] = {}
        reached: set[int] = set()
        for number, one in enumerate(schema.relations):
            nodes = set(range(schema.offsets[one.destination], schema.offsets[one.destination + 1]))
            reached |= nodes
            expected[number] = _count(nodes - set(destinations[relation == number].tolist()), wanted)
        expected[ALL_RELATIONS] = _count(reached - set(destinations.tolist()), wanted)
        assert nodes_without_edges(dataset, wanted) == {number: count for number, count in expected.items() if count}


def _count(nodes: set[int], wanted: np.ndarray | None) -> int:
    return sum(wanted is None or bool(wanted[node]) for node in nodes)


def test_what_a_layer_asks_for_is_named_with_its_line(tmp_path: Path) -> None:
    text = MODULE.format(layer='PNAConv(in_size, out_size, ["mean"], ["identity"], 2.5)')
    with pytest.raises(ConfigError) as caught:
        check(configured(tmp_path, text, *SMALL))
    said = str(caught.value)
    assert "'batch_num_nodes'" in said and "pnaconv.py line " in said and f"{tmp_path}/net.py line 11" in said
    assert "allowed" not in said and "num_src_nodes" not in said
