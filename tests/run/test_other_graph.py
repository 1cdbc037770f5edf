"""A trained model on another graph: the same numbers as by hand, whatever the world, and one message for what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sargnn.cli.resume import read_resumed
from sargnn.config.run import save as save_config
from sargnn.graph.store import StoreWriter
from sargnn.run.other_graph import learned_rows
from sargnn.training.checkpoint import FORMAT_VERSION, open_checkpoint
from tests.configs import config
from tests.graphs import small_typed_graph
from tests.in_process import sargnn_here as run
from tests.sources.own.given import save_arrays
from tests.sources.tables.shop import N, follows, shop, typed, users

TRAIN = ["train", "epochs=2", "tracking=none", "model.hidden=8", "checkpoint.every=1", "threads=1", "world=2"]
SYNTHETIC = ["dataset.num_nodes=300", "dataset.mean_degree=6"]


def done(folder: Path, *words: str) -> str:
    result = run(folder, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(folder: Path, *words: str) -> str:
    result = run(folder, *words)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stdout + result.stderr
    return " ".join(result.stderr.split())


def arrays(seed: int, nodes: int = 120, **changes: Any) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    masks = {f"{word}_mask": np.arange(nodes) % 3 == k for k, word in enumerate(("train", "val", "test"))}
    graph = {
        "edge_index": draw.integers(0, nodes, (2, 5 * nodes)),
        "x": draw.normal(size=(nodes, 7)).astype(np.float32),
        "y": draw.integers(0, 4, nodes),
    }
    return {name: array for name, array in (graph | masks | changes).items() if array is not None}


def save(folder: Path, given: dict[str, Any]) -> str:
    folder.mkdir()
    save_arrays(folder, given)
    return f"dataset.root={folder}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on arrays, with norms, and one on the embedded graph."""
    path = tmp_path_factory.mktemp("other")
    own = ["dataset=arrays", save(path / "first", arrays(0)), "dataset.add_self_loops=true"]
    done(path, *TRAIN, *own, "model=gcn", "model.norm=batch", "run_name=arrays")
    done(path, *TRAIN, *SYNTHETIC, "run_name=synthetic")
    return path


def test_the_own_graph_as_another_one(folder: Path) -> None:
    """Named anew it gives what it gives unnamed; self-loops and the like are the training's."""
    done(folder, "predict", "arrays", "out=plain")
    done(folder, "predict", "arrays", "dataset=arrays", f"dataset.root={folder / 'first'}", "out=named", "world=3")
    first, second = (np.load(folder / name / "logits.npy") for name in ("plain", "named"))
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_a_graph_that_was_moved_is_no_other_one(folder: Path) -> None:
    """Also its pairs are predicted there, and a split that was drawn stays."""
    given = {name: array for name, array in arrays(3).items() if "mask" not in name}
    own = ["dataset=arrays", save(folder / "here", given), "dataset.split=[0.5,0.2,0.3]", "dataset.link_split=[0.8,0.1,0.1]"]
    done(folder, *TRAIN, *own, "task=links", "run_name=placed")
    (folder / "here").rename(folder / "there")
    done(folder, "predict", "placed", f"dataset.root={folder / 'there'}", "out=moved")
    assert not json.loads((folder / "moved" / "predictions.json").read_text())["other_graph"]


def test_a_disjoint_graph_gives_its_part(folder: Path) -> None:
    """A graph of the own one and another one beside it: each part has the rows that it has alone."""
    one, other = arrays(0), arrays(5, nodes=50)
    both = {name: np.concatenate([one[name], other[name]]) for name in one if name != "edge_index"}
    both["edge_index"] = np.concatenate([one["edge_index"], other["edge_index"] + 120], 1)
    done(folder, "predict", "arrays", save(folder / "both", both), "out=joined")
    done(folder, "predict", "arrays", save(folder / "alone", other), "out=part", "mode=one_shot", "world=1")
    done(folder, "predict", "arrays", "out=mine")
    joined, part, mine = (np.load(folder / name / "logits.npy") for name in ("joined", "part", "mine"))
    np.testing.assert_allclose(joined, np.concatenate([mine, part]), atol=1e-5)


def test_labels_may_be_missing(folder: Path) -> None:
    given = arrays(7)
    bare = {name: given[name] for name in ("edge_index", "x")}
    done(folder, "predict", "arrays", save(folder / "whole", given), "out=of_whole")
    done(folder, "predict", "arrays", save(folder / "bare", bare), "out=of_bare")
    done(folder, "predict", "arrays", save(folder / "unsplit", bare | {"y": given["y"]}), "out=of_unsplit")
    logits = [np.load(folder / name / "logits.npy") for name in ("of_whole", "of_bare", "of_unsplit")]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])
    done(folder, "evaluate", "arrays", "predictions=of_unsplit")
    scores = json.loads((folder / "of_unsplit" / "evaluation.json").read_text())
    right = (logits[0].argmax(1) == given["y"]).mean()
    assert scores["nodes"] == {"train": 0, "valid": 0, "test": 120}
    assert scores["scores"]["predictions"]["test"] == pytest.approx(right)
    done(folder, "evaluate", "arrays", "predictions=of_whole")


def test_fewer_classes_and_other_settings(folder: Path) -> None:
    """A graph without nodes of the last class has as many outputs; another graph of a generator is one, too."""
    done(folder, "predict", "arrays", save(folder / "few", arrays(9, y=np.zeros(120, int))), "out=of_few")
    assert np.load(folder / "of_few" / "logits.npy").shape == (120, 4)
    done(folder, "predict", "synthetic", "dataset.seed=9", "dataset.num_nodes=200", "out=tomorrow", "format=csv")
    assert np.load(folder / "tomorrow" / "predictions.npy").shape == (200,)


def test_what_does_not_fit(folder: Path) -> None:
    x, y = arrays(0)["x"], arrays(0)["y"]
    cases = {
        "wide": (arrays(0, x=np.concatenate([x, x], 1)), (), "features of.*14.*node: 7"),
        "classes": (arrays(0, y=y + 3), (), "labels are others.*classes, 7.*classes, 4"),
        "blank": (arrays(0, y=None, train_mask=None, val_mask=None, test_mask=None), ("smooth=cs",), "Smooth spreads labels"),
    }
    for name, (given, words, message) in cases.items():
        said = refused(folder, "predict", "arrays", save(folder / name, given), "out=wrong", *words)
        assert all(part in said for part in message.split(".*")), said
    said = refused(folder, "predict", "arrays", "dataset=synthetic", *SYNTHETIC, "out=wrong")
    assert "features of" in said
    said = refused(folder, "predict", "arrays", "model.hidden=9", f"dataset.root={folder / 'first'}", "out=wrong")
    assert "keeps what decides" in said and "dataset" not in said.partition("next")[0]
    links = ["task=links", *SYNTHETIC, "dataset.link_split=[0.8,0.1,0.1]"]
    done(folder, *TRAIN, *links, "run_name=links")
    assert "own graph" in refused(folder, "predict", "links", "dataset.seed=3", "out=wrong")
    said = refused(folder, "predict", "arrays", save(folder / "far", arrays(2)), f"store_dir={folder / 'none'}", "out=wrong")
    assert "is gone" in said and "prepare" in said


def test_tables_take_over_encodings(tmp_path: Path) -> None:
    """Categories, means and names of classes are the training's; ids are the new graph's."""
    columns = {"files": "users", "id": "id", "features": {"town": None, "age": "standard"}}
    spec: dict[str, Any] = {
        "nodes": columns | {"label": "kind", "split": "part"},
        "edges": {"files": "follows", "source": "from", "destination": "to"},
    }
    towns, kinds = np.array(["b", "d", "a"]), np.array(["tall", "short", "wide"])
    nodes = users() | {"town": pa.array(towns[np.arange(N) % 3]), "kind": pa.array(kinds[np.arange(N) % 3])}
    shop(tmp_path / "first", spec, users=nodes)
    done(tmp_path, *TRAIN, "dataset=tables", f"dataset.root={tmp_path}/first/shop.yaml", "run_name=shop")
    new = {name: nodes[name].slice(0, 20) for name in ("id", "town", "age")}
    ids = set(new["id"].to_pylist())
    edges = follows(nodes["id"])
    inside = [a in ids and b in ids for a, b in zip(edges["from"].to_pylist(), edges["to"].to_pylist(), strict=True)]
    shop(
        tmp_path / "new",
        spec | {"nodes": columns},
        users=new,
        follows={name: edges[name].filter(pa.array(inside)) for name in ("from", "to")},
    )
    done(tmp_path, "predict", "shop", f"dataset.root={tmp_path}/new/shop.yaml", "out=new_out", "format=parquet")
    table = pq.read_table(tmp_path / "new_out" / "predictions.parquet").to_pydict()
    assert table["id"] == new["id"].to_pylist() and set(table["prediction"]) <= set(kinds.tolist())
    x = np.zeros((20, 4), np.float32)
    x[np.arange(20), [["a", "b", "d"].index(town) for town in new["town"].to_pylist()]] = 1
    ages = nodes["age"].to_numpy()
    x[:, 3] = (new["age"].to_numpy() - ages.mean()) / ages.std()
    (store,) = [path for path in (tmp_path / "stores" / "datasets").iterdir() if len(np.load(path / "labels.npy")) == 20]
    np.testing.assert_allclose(np.load(store / "features" / "00.npy"), x, rtol=1e-5, atol=1e-6)


def test_what_the_command_says_of_another_graph_counts(tmp_path: Path) -> None:
    """What it leaves open is as in training."""
    (tmp_path / "run").mkdir()
    own = [f"dataset.root={tmp_path / 'first'}", "dataset.add_self_loops=true", "dataset.edge_weights=false"]
    save_config(config("dataset=arrays", *own), tmp_path / "run" / "config.yaml")
    words = ["dataset=arrays", f"dataset.root={tmp_path / 'second'}", "dataset.add_self_loops=false"]
    resumed = read_resumed([f"resume={tmp_path / 'run'}", *words], trains=False)
    assert resumed is not None
    dataset = resumed[0].dataset
    assert (dataset.add_self_loops, dataset.edge_weights) == (False, False)


def test_averages_of_learned_rows_are_what_is_used(tmp_path: Path) -> None:
    graph, tables = small_typed_graph("names"), {}
    for number, (kind, t) in enumerate((kind, t) for kind in ("param", "average") for t in range(2)):
        name = f"{kind}/inputs.embeddings.{t:02d}_{graph.schema.node_types[t]}"
        tables[name] = np.random.default_rng(number).normal(size=(graph.schema.count(t), 4)).astype(np.float32)
    with StoreWriter(tmp_path / "checkpoint", "checkpoint", FORMAT_VERSION) as writer:
        for name, table in tables.items():
            writer.put(name, table)
    paths = learned_rows(open_checkpoint(tmp_path / "checkpoint", verify=True), graph, graph, tmp_path, "refuse")
    assert len(paths) == 2
    for name, path in paths.items():
        np.testing.assert_array_equal(np.load(path), tables[name.replace("param/", "average/")])


def test_learned_rows(tmp_path: Path) -> None:
    """Rows follow their nodes' ids; new nodes are refused, or get the mean of their neighbours' rows."""
    path = typed(tmp_path / "first")
    words = ["dataset=tables", f"dataset.root={path}", "model=rgcn", "run_name=typed", "world=1"]
    done(tmp_path, *TRAIN, *words)
    again = typed(tmp_path / "same")
    done(tmp_path, "predict", "typed", "out=plain")
    done(tmp_path, "predict", "typed", f"dataset.root={again}", "out=again", "world=2")
    first, second = (np.load(tmp_path / name / "logits.npy") for name in ("plain", "again"))
    np.testing.assert_allclose(first, second, atol=1e-5)
    # The shops change their order, and one is new.
    later = typed(tmp_path / "later")
    places = {"sku": pa.array([9_000_000_000 + 3 * k for k in range(5)]), "shop": pa.array(["a", "new", "b", "c", "a"])}
    for file in (tmp_path / "later" / "places").iterdir():
        file.unlink()
    pq.write_table(pa.table(places), tmp_path / "later" / "places" / "all.parquet")
    said = refused(tmp_path, "predict", "typed", f"dataset.root={later}", "out=wrong")
    assert "'shop'" in said and "1 of 4 nodes" in said and "new_rows=mean" in said
    done(tmp_path, "predict", "typed", f"dataset.root={later}", "out=mean", "new_rows=mean")
    assert not list((tmp_path / "mean").glob("rows_*"))


@pytest.mark.long
def test_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is an object, without labels; and a table of what was predicted."""
    import sargnn

    monkeypatch.chdir(folder)
    given = arrays(11)
    loaded = sargnn.load("arrays")
    logits = loaded.logits(graph={name: given[name] for name in ("edge_index", "x")}, quiet=True, out="of_object")
    done(folder, "predict", "arrays", save(folder / "eleven", given), "out=of_files")
    np.testing.assert_allclose(logits, np.load(folder / "of_files" / "logits.npy"), atol=1e-6)
    table = loaded.table(quiet=True, out="table")
    assert list(table.columns) == ["node", "prediction", "logits"] and len(table) == 120
    np.testing.assert_array_equal(table["prediction"], loaded.predictions(quiet=True))
