"""Which names of arrays are read, in every form, and what is said of the others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.run.check import check_graph
from sargnn.sources.own.given import ALIASES, EDGE_FEATURES, FEATURES, LABELS, NAMES, ON_EDGES
from sargnn.sources.prepare import prepare_dataset
from tests.in_process import sargnn_here
from tests.sources.own import given
from tests.sources.own.small import GRAPH, of_folder, of_object

FEATURE_NAMES, LABEL_NAMES = ALIASES[FEATURES], ALIASES[LABELS]


def renamed(features: str, labels: str = "y") -> given.Arrays:
    return {{"x": features, "y": labels}.get(name, name): value for name, value in GRAPH.items()}


def as_dgl(arrays: given.Arrays) -> Any:
    """Under these very names."""
    graph = given.as_dgl(GRAPH)
    import torch

    for name in ("feat", "label"):
        del graph.ndata[name]
    graph.ndata.update({name: torch.from_numpy(value) for name, value in arrays.items() if name not in given.OF_EDGES})
    return graph


@pytest.mark.parametrize("name", FEATURE_NAMES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_name_of_features_in_every_form(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = renamed(name)
    readers = [
        of_folder(given.save_arrays(tmp_path / "folder", arrays)),
        of_folder(given.write_npz(tmp_path / "archive", arrays, np.savez)),
        *(of_object(convert(arrays)) for convert in (dict, as_dgl, given.as_pyg)),
    ]
    for reader in readers:
        assert np.array_equal(np.concatenate([*reader.features(4)]), GRAPH["x"])
    assert not caplog.records


@pytest.mark.parametrize("name", LABEL_NAMES)
def test_every_name_of_labels(name: str, tmp_path: Path) -> None:
    arrays = renamed("x", name)
    for reader in (of_folder(given.save_arrays(tmp_path, arrays)), of_object(as_dgl(arrays))):
        assert reader.labels().tolist() == GRAPH["y"].tolist()


def test_the_names_that_people_use() -> None:
    assert {"x", "feat", "feats", "feature", "features", "node_feat", "node_features"} <= set(FEATURE_NAMES)
    assert {"y", "label", "labels", "node_label", "node_labels"} <= set(LABEL_NAMES)


def test_what_is_not_read_is_said_once_with_what_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = given.save_arrays(tmp_path / "mine", {name: value for name, value in GRAPH.items() if name != "edge_index"})
    np.save(folder / "year.npy", np.ones(6))
    (folder / "edges.csv").write_text("".join(f"{a},{b},2015\n" for a, b in GRAPH["edge_index"].T))
    assert sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine").returncode == 0
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    (names,) = [line for line in said if "'year'" in line]
    assert "features" in names and "node_feat" in names and "labels" in names and "docs/howto/own-arrays.md" in names
    (columns,) = [line for line in said if "after the second" in line]
    assert "source,target,weight,edge_attr_0" in columns and len(said) == 2


def test_named_columns_that_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = given.save_arrays(tmp_path / "mine", {name: value for name, value in GRAPH.items() if name != "edge_index"})
    (folder / "edges.csv").write_text("source,year,target,edge_attr_km\n0,2015,1,3.5\n")
    reader = of_folder(folder)
    (record,) = caplog.records
    assert "year" in record.message and "edge_attr_year" in record.message and "km" not in record.message
    ((*_, columns),) = reader.edges(9)
    assert columns["attr"].tolist() == [[3.5]]
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine")
    assert "1 directed edges (1 feature each), 2 features" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ON_EDGES[EDGE_FEATURES])
def test_every_name_of_edge_features(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some only where nothing else can be meant, as among DGL's edge data."""
    features = np.arange(10.0).reshape(5, 2)
    graph = as_dgl(GRAPH)
    import torch

    graph.edata[name] = torch.from_numpy(features)
    readers = [of_object(graph)]
    if NAMES.get(name) == EDGE_FEATURES:
        readers += [of_folder(given.save_arrays(tmp_path, GRAPH | {name: features})), of_object(GRAPH | {name: features})]
    for reader in readers:
        assert np.concatenate([columns["attr"] for *_, columns in reader.edges(2)]).tolist() == features.tolist()
    assert not caplog.records


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_data_of_edges_of_pyg_that_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    data = given.as_pyg(GRAPH)
    data.edge_time = data.edge_index.T
    of_object(data)
    (record,) = caplog.records
    assert "data.edge_time" in record.message and "name them edge_weight" in record.message and "edge_attr" in record.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_data_of_edges_of_a_typed_graph_of_pyg(caplog: pytest.LogCaptureFixture) -> None:
    arrays: given.Arrays = {name: {"a": value} for name, value in GRAPH.items() if name != "edge_index"}
    arrays |= {"edge_index": {("b", "to", "a"): GRAPH["edge_index"]}, "num_nodes": {"a": 6, "b": 6}}
    data = given.as_hetero(arrays)
    data["b", "to", "a"].edge_time = data["b", "to", "a"].edge_index.T
    of_object(data)
    (record,) = caplog.records
    assert "data['b', 'to', 'a'].edge_time" in record.message


def test_data_of_edges_that_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    graph = given.as_dgl(GRAPH)
    graph.edata["year"] = graph.edges()[0]
    of_object(graph)
    (record,) = caplog.records
    assert "edata['year']" in record.message and "name them edge_weight" in record.message


@pytest.mark.parametrize("features", [False, True])
def test_a_model_that_leaves_edge_features_out(features: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It trains all the same; the start says so."""
    given.save_arrays(tmp_path / "mine", GRAPH | ({"edge_attr": np.ones((5, 3))} if features else {}))
    words = ["dataset=arrays", f"dataset.root={tmp_path / 'mine'}", "model=sage", f"store_dir={tmp_path / 'stores'}"]
    config = parse(compose_verb("train", words))
    check_graph(config, prepare_dataset(config.dataset, config.store_dir))
    assert ("the edges' 3 features" in capsys.readouterr().err) == features
