"""Which runs may use edge weights, what those do that shall not, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.choices import ModelSettings
from sargnn.config.groups import SmoothConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.check import weight_range
from sargnn.graph.dataset import Dataset, cut_surroundings, write_dataset
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.partition.cut import parts_of
from sargnn.training.build import check_edge_weights, make_trainer
from tests.graphs import nasty_graph, typed_graph, with_weights
from tests.in_process import sargnn_here
from tests.parity.cases import model_config, run_config


@dataclasses.dataclass(frozen=True)
class Outside(ModelSettings):
    """A model of someone's who has never heard of edge weights."""

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    def build(self, shape: Any) -> Any:
        raise NotImplementedError


def config_of(name: str, **changes: Any) -> RunConfig:
    if name == "outside":
        return run_config(Outside("outside"))
    if name == "custom":
        return run_config(CustomSettings("custom", target="m:Model", content="0" * 16))
    return run_config(model_config(name, **changes))


def without(config: RunConfig) -> RunConfig:
    """The same with ``dataset.edge_weights=false``."""
    return dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, edge_weights=False))


SMOOTH = SmoothConfig("cs")


@pytest.mark.parametrize(
    ("config", "weights", "words"),
    [
        (config_of("sage", aggregator="max"), (0.0, 2.0), ["'sage'", "maximum", "from 0 to 2"]),
        (config_of("outside"), (1.0, 1.0), ["'outside'", "edge weights of 1", "no_weights"]),
        (config_of("sage", aggregator="mean"), (-1.5, 2.0), ["'sage' divides by sums", "from -1.5 to 2", "aggregator=sum"]),
        (config_of("gcn"), (-1.0, 0.0), ["'gcn' divides by sums"]),
        (config_of("rgcn"), (-1.0, 0.0), ["'rgcn' divides by sums"]),
        (config_of("label_propagation"), (-1.0, 0.0), ["'label_propagation' divides by sums"]),
        (dataclasses.replace(config_of("gat"), smooth=SMOOTH), (-1.0, 1.0), ["Correct & Smooth divides", "smooth=none"]),
        (dataclasses.replace(config_of("mlp"), smooth=SMOOTH), (-1.0, 1.0), ["Correct & Smooth divides"]),
    ],
)  # fmt: skip
def test_what_is_refused(config: RunConfig, weights: tuple[float, float], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_edge_weights(config, weights)
    assert all(word in str(caught.value) for word in [*words, "dataset.edge_weights=false"]), str(caught.value)
    check_edge_weights(without(config), weights)
    check_edge_weights(config, None)


@pytest.mark.parametrize("name", ["gat", "gatv2", "mlp", "linear", "custom", "sum"])
def test_what_takes_weights_of_any_sign(name: str) -> None:
    config = config_of("sage", aggregator="sum") if name == "sum" else config_of(name)
    check_edge_weights(config, (-3.0, 2.0))


def losses(config: RunConfig, graph: Dataset) -> list[float]:
    part = next(parts_of(graph, np.zeros(graph.num_nodes, np.int32), 1))
    trainer = make_trainer(dataclasses.replace(config, epochs=3), part, graph.num_classes, Group.single())
    assert trainer.graph.part.weighted == (graph.columns.weight is not None and config.dataset.edge_weights)
    return trainer.run().losses


@pytest.mark.parametrize("mfg", [False, True])
def test_without_their_use_weights_change_nothing(mfg: bool) -> None:
    config = run_config(model_config("sage", norm="none"), mfg=mfg)
    plain, weighted = nasty_graph(), with_weights(nasty_graph())
    assert losses(config, plain) == losses(without(config), weighted) != losses(config, weighted)


def test_weights_of_one_change_no_more_than_rounding() -> None:
    config = run_config(model_config("gcn"))
    ones = dataclasses.replace(nasty_graph(), columns=EdgeColumns.of({"weight": np.ones(nasty_graph().num_edges, np.float32)}))
    np.testing.assert_allclose(losses(config, ones), losses(config, nasty_graph()), rtol=1e-12)


@pytest.mark.parametrize("make", [nasty_graph, typed_graph])
def test_a_part_of_a_graph_keeps_them(make: Any) -> None:
    graph = with_weights(make())
    small = cut_surroundings(graph, 100)
    assert graph.columns.weight is not None and small.columns.weight is not None and small.num_nodes == 100
    assert len(small.columns.weight) == small.num_edges and set(small.columns.weight) <= set(graph.columns.weight)
    assert small.stored_weights is None
    if make is nasty_graph:  # features tell a node
        ids = [int(np.flatnonzero((graph.features[0] == row).all(1))[0]) for row in small.features[0]]
        for k, node in enumerate(ids):
            own = slice(int(small.indptr[k]), int(small.indptr[k + 1]))
            first, last = graph.indptr[node], graph.indptr[node + 1]
            found = zip([ids[j] for j in small.indices[own]], small.columns.weight[own], strict=True)
            assert set(found) <= set(zip(graph.indices[first:last], graph.columns.weight[first:last], strict=True))


def test_a_run_says_that_edges_have_weights(tmp_path: Path) -> None:
    graph = with_weights(nasty_graph(), lowest=-1)
    write_dataset(tmp_path / "store", graph, made_by={})
    words = ("dataset=stored", f"dataset.root={tmp_path / 'store'}", "world=2", "epochs=2", "tracking=none", "model.hidden=4")
    refused = sargnn_here(tmp_path, "train", *words)
    assert refused.returncode == 1 and "divides by sums" in refused.stderr, refused.stderr
    low, high = weight_range(graph) or (0, 0)
    assert f"from {low:g} to {high:g}" in refused.stderr and not (tmp_path / "stores" / "partitions").exists()
    done = sargnn_here(tmp_path, "train", *words, "model.aggregator=sum", "run_dir=run")
    assert done.returncode == 0, done.stderr
    assert "1135 directed weighted edges" in done.stderr + done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["edge_weights"] is True
    done = sargnn_here(tmp_path, "train", *words, "dataset.edge_weights=false", "run_dir=without")
    assert done.returncode == 0 and "not used" in done.stderr + done.stdout, done.stderr
    assert json.loads((tmp_path / "without" / "summary.json").read_text())["edge_weights"] is False
    done = sargnn_here(tmp_path, "predict", "run=run", "out=out")
    assert done.returncode == 0 and np.load(tmp_path / "out" / "logits.npy").shape == (300, 5), done.stderr
    assert len(list((tmp_path / "stores" / "partitions").iterdir())) == 1  # the same with and without
