"""``sargnn import-dgl``: partitions that DGL wrote are the graphs that it was given, cut as it cut them."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sargnn.cli.help import candidates
from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, open_dataset, write_dataset
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.interop.dgl import import_dgl
from sargnn.partition.store import open_part, partition_info
from sargnn.sources.dgl_partition.nodes import Names
from sargnn.sources.dgl_partition.reader import dgl_partition
from sargnn.tracking.summary import read_summary
from tests.graphs import nasty_graph, typed_graph
from tests.in_process import sargnn_here
from tests.sources.dgl_files import write_parts


def plain() -> Dataset:
    """Some nodes outside the split have no label."""
    graph = nasty_graph()
    labels = np.where((graph.split == 0) & (np.arange(graph.num_nodes) % 2 == 0), -1, graph.labels)
    return dataclasses.replace(graph, name="mine", labels=labels)


def ends_decide(graph: Dataset) -> Dataset:
    """With weights and features that parallel edges share, since DGL keeps no order of these."""
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    relation = 0 if graph.relation is None else np.asarray(graph.relation)
    weights = (graph.indices * 31 + destinations * 7 + relation) % 23 / 8
    features = np.stack([weights * 3, graph.indices, destinations], 1).astype(np.float32)
    columns = EdgeColumns.of({"weight": weights.astype(np.float32), ATTR: features})
    return dataclasses.replace(graph, columns=columns)


def typed(*, inverse: bool = False) -> Dataset:
    """``typed_graph`` with its relations in the order of their names, as readers take them; those with few edges left out."""
    graph = typed_graph()
    schema, types = graph.schema, graph.schema.node_types
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    relations = []
    for r, one in enumerate(schema.relations):
        own = np.asarray(graph.relation) == r
        ends = graph.indices[own] - schema.offsets[one.source], destinations[own] - schema.offsets[one.destination]
        if own.sum() > 50:
            relations.append(Edges(one, *ends))
    relations.sort(key=lambda one: (types[one.relation.source], one.relation.name, types[one.relation.destination]))
    papers = slice(*schema.offsets[types.index("paper") : types.index("paper") + 2])
    return typed_dataset(
        "mine", graph.num_classes, types, graph.features, relations + [one.inverse() for one in relations if inverse],
        types.index("paper"), graph.labels[papers], graph.split[papers],
    )  # fmt: skip


def hash_of(dataset: Dataset, folder: Path) -> str:
    write_dataset(folder, dataset, made_by={})
    return open_dataset(folder, verify=True).content_hash


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both graphs as DGL wrote them, in three and two parts."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("plain", "typed")}
    write_parts(folders["plain"], plain(), 3)
    write_parts(folders["typed"], typed(), 2)
    return folders


def imported(folder: Path, *words: str) -> list[str]:
    """What the command prints: the stores' folders, and what trains on them."""
    done = sargnn_here(folder, "import-dgl", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("kind", "graph", "parts"), [("plain", plain, 3), ("typed", typed, 2)])
def test_the_graph_and_the_parts_are_those_that_dgl_was_given_and_made(
    kind: str, graph: Callable[[], Dataset], parts: int, written: dict[str, Path], tmp_path: Path
) -> None:
    dataset, partition, command = imported(tmp_path, str(written[kind] / "mine.json"))
    found = open_dataset(tmp_path / dataset, verify=True)
    assert found.content_hash == hash_of(graph(), tmp_path / "wanted") and found.name == "mine"
    assert found.schema.node_types == graph().schema.node_types and f"world={parts}" in command
    info = partition_info(tmp_path / partition)
    assert info.world == parts and info.dataset_hash == found.content_hash
    types = found.schema.node_types
    dgl = import_dgl()
    for p in range(parts):
        (own,), _ = dgl.load_graphs(str(written[kind] / f"part{p}" / "graph.dgl"))
        data = dgl.data.utils.load_tensors(str(written[kind] / f"part{p}" / "node_feat.dgl"))
        names = types if kind == "typed" else ["_N"]
        wanted = [data[f"{name}/orig_id"].numpy() + found.schema.offsets[t] for t, name in enumerate(names)]
        assert sorted(open_part(info.path, p).node_ids) == sorted(np.concatenate(wanted))
        assert int(own.ndata["inner_node"].sum()) == info.stats.nodes[p]
        assert int(own.edata["inner_edge"].sum()) == info.stats.edges[p]


@pytest.mark.parametrize(("graph", "parts"), [(plain, 1), (plain, 3), (typed, 2)])
def test_edge_weights(graph: Callable[[], Dataset], parts: int, tmp_path: Path) -> None:
    wanted = ends_decide(graph())
    write_parts(tmp_path / "parts", wanted, parts)
    dataset, *_ = imported(tmp_path, str(tmp_path / "parts" / "mine.json"))
    found = open_dataset(tmp_path / dataset, verify=True)
    assert found.content_hash == hash_of(wanted, tmp_path / "wanted") and found.columns.weight is not None


def test_edge_weights_of_another_length(tmp_path: Path) -> None:
    write_parts(tmp_path / "parts", ends_decide(plain()), 2)
    dgl = import_dgl()
    path = tmp_path / "parts" / "part1" / "edge_feat.dgl"
    data = dgl.data.utils.load_tensors(str(path))
    dgl.data.utils.save_tensors(str(path), {name: rows[:-1] for name, rows in data.items()})
    done = sargnn_here(tmp_path, "import-dgl", str(tmp_path / "parts" / "mine.json"))
    assert done.returncode == 1 and "part1/edge_feat.dgl" in done.stderr and "own edges" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_inverse_edges(kind: str, written: dict[str, Path], tmp_path: Path) -> None:
    found = open_dataset(tmp_path / imported(tmp_path, str(written[kind] / "mine.json"), "inverse=true")[0], verify=True)
    if kind == "typed":
        assert found.content_hash == hash_of(typed(inverse=True), tmp_path / "wanted")
        return
    adjacency = np.zeros((2, found.num_nodes, found.num_nodes))
    for matrix, one in zip(adjacency, (found, plain()), strict=True):
        np.add.at(matrix, (np.repeat(np.arange(one.num_nodes), np.diff(one.indptr)), one.indices), 1)
    assert np.array_equal(adjacency[0], adjacency[1] + adjacency[1].T)


def _save_ids(folder: Path, nodes: dict[str, torch.Tensor], form: str) -> list[str]:
    """Original ids in one of the forms that are read; the settings to read them."""
    dgl, ids = import_dgl(), nodes.get("_N", nodes)
    if form == "torch":
        torch.save(ids, folder / "ids.pt")
    elif form == "tensors":
        dgl.data.utils.save_tensors(str(folder / "ids.dgl"), nodes)
    elif form == "numpy":
        np.save(folder / "ids.npy", nodes["_N"].numpy())
    content = json.loads((folder / "mine.json").read_text())
    for p in range(content["num_parts"]):
        ranges = {name: [last - first for first, last in one] for name, one in content["node_map"].items()}
        own = {name: torch.split(nodes[name], sizes)[p] for name, sizes in ranges.items()}
        if form == "beside":
            dgl.data.utils.save_tensors(str(folder / f"part{p}" / "orig_nids.dgl"), own)
        elif form == "graph":  # as DGL kept them once: halo nodes too, numbered type by type
            file = str(folder / f"part{p}" / "graph.dgl")
            (graph,), _ = dgl.load_graphs(file)
            of_type = {name: list(content["ntypes"]).index(name) for name in content["node_map"]}
            offsets = np.cumsum([0, *(len(nodes[name]) for name in content["ntypes"])])
            everything = torch.zeros(content["num_nodes"], dtype=torch.int64)
            for name, one in content["node_map"].items():
                for (first, last), piece in zip(one, torch.split(nodes[name], ranges[name]), strict=True):
                    everything[first:last] = piece + int(offsets[of_type[name]])
            graph.ndata["orig_id"] = everything[graph.ndata[dgl.NID]]
            dgl.save_graphs(file, [graph])
    suffix = {"torch": "pt", "tensors": "dgl", "numpy": "npy"}.get(form)
    return [f"mapping={folder / f'ids.{suffix}'}"] if suffix else []


@pytest.mark.parametrize(
    ("kind", "form"),
    [("plain", "torch"), ("plain", "numpy"), ("plain", "graph"), ("typed", "torch"), ("typed", "tensors"),
     ("typed", "beside"), ("typed", "graph")],
)  # fmt: skip
def test_original_ids_in_every_form(kind: str, form: str, tmp_path: Path) -> None:
    graph = plain() if kind == "plain" else typed()
    nodes = write_parts(tmp_path, graph, 2, original=False, part_method="random")
    words = _save_ids(tmp_path, nodes if isinstance(nodes, dict) else {"_N": nodes}, form)
    dataset, *_ = imported(tmp_path, "mine.json", *words)
    assert open_dataset(tmp_path / dataset, verify=True).content_hash == hash_of(graph, tmp_path / "wanted")


def test_without_original_ids_those_of_dgl_are_kept(tmp_path: Path) -> None:
    """The same graph, renumbered by DGL's mapping."""
    graph = plain()
    old = write_parts(tmp_path, graph, 2, original=False).numpy()
    done = sargnn_here(tmp_path, "import-dgl", "mine.json", "name=other")
    assert done.returncode == 0 and "no original ids" in done.stderr, done.stderr
    found = open_dataset(tmp_path / done.stdout.splitlines()[0], verify=True)
    assert found.name == "other" and np.array_equal(found.labels, graph.labels[old])
    assert np.array_equal(found.split, graph.split[old]) and np.array_equal(found.features[0], graph.features[0][old])
    for node in range(graph.num_nodes):
        own = found.indices[found.indptr[node] : found.indptr[node + 1]]
        assert sorted(old[own]) == graph.indices[graph.indptr[old[node]] : graph.indptr[old[node] + 1]].tolist()


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_the_printed_command_trains_on_the_stores_as_they_are(kind: str, written: dict[str, Path], tmp_path: Path) -> None:
    """With the losses of METIS's partition into two."""
    command = shlex.split(imported(tmp_path, str(written[kind] / "mine.json"))[-1])
    stores = sorted((tmp_path / "stores").glob("*/*"))
    assert command[:2] == ["sargnn", "train"] and ("model=rgcn" in command) == (kind == "typed")
    small = ["model.hidden=8", "epochs=3", "precision=fp64", "tracking=none"]
    metis = [one for one in command[1:] if not one.startswith(("partitioner", "world"))] + ["world=2"]
    losses = []
    for name, words in (("given", command[1:]), ("metis", metis)):
        done = sargnn_here(tmp_path, *words, *small, f"run_dir={name}")
        assert done.returncode == 0, done.stderr
        if name == "given":
            assert sorted((tmp_path / "stores").glob("*/*")) == stores
        summary = read_summary(tmp_path / name)
        assert summary is not None and summary.dataset == "mine"
        losses.append(summary.losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-8)


def test_the_same_files_give_the_same_stores_and_others_do_not(written: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(written["plain"], tmp_path / "parts")
    first = imported(tmp_path, "parts/mine.json")
    stamp = (tmp_path / first[0] / "manifest.json").stat().st_mtime_ns
    assert imported(tmp_path, "parts/mine.json") == first
    assert (tmp_path / first[0] / "manifest.json").stat().st_mtime_ns == stamp
    assert imported(tmp_path, "parts/mine.json", "test=")[0] != first[0]


def test_paths_with_other_characters(written: dict[str, Path], tmp_path: Path) -> None:
    command = imported(tmp_path, str(written["plain"] / "mine.json"), "store_dir=my stores, (all)")[-1]
    done = sargnn_here(tmp_path, "partition", *(one for one in shlex.split(command)[2:]))
    assert done.returncode == 0 and "given" in done.stdout, done.stderr
    assert len(list((tmp_path / "my stores, (all)" / "partitions").iterdir())) == 1


def test_a_small_buffer_gives_the_same_store(written: dict[str, Path], tmp_path: Path) -> None:
    reader = dgl_partition(written["plain"] / "mine.json", Names()).reader
    reader.write(tmp_path / "small", 4096)
    assert open_dataset(tmp_path / "small", verify=True).content_hash == hash_of(plain(), tmp_path / "wanted")


def _edit(folder: Path, change: Callable[[dict], None]) -> None:
    content = json.loads((folder / "mine.json").read_text())
    change(content)
    (folder / "mine.json").write_text(json.dumps(content))


def _change_data(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    load, save = import_dgl().data.utils.load_tensors, import_dgl().data.utils.save_tensors
    file = str(folder / "part1" / "node_feat.dgl")
    data = load(file)
    save(file, data | {f"_N/{name}": change(data[f"_N/{name}"])})


def _nan(rows: torch.Tensor) -> torch.Tensor:
    rows[3, 2] = torch.nan
    return rows


FAULTS: dict[str, tuple[Callable[[Path], object], list[str], list[str]]] = {
    "no file": (lambda f: (f / "mine.json").unlink(), [], ["mine.json", "No such file"]),
    "no JSON": (lambda f: (f / "mine.json").write_text("{"), [], ["mine.json", "no JSON"]),
    "another JSON": (lambda f: (f / "mine.json").write_text("[1]"), [], ["mine.json", "partition_graph"]),
    "no node_map": (lambda f: _edit(f, lambda c: c.pop("node_map")), [], ["mine.json", "'node_map' is missing"]),
    "a part less": (lambda f: _edit(f, lambda c: c.update(num_parts=2)), [], ["mine.json", "2 ranges"]),
    "a gap": (lambda f: _edit(f, lambda c: c["node_map"]["_N"][1].__setitem__(0, 150)), [], ["mine.json", "node_map"]),
    "more nodes": (lambda f: _edit(f, lambda c: c.update(num_nodes=301)), [], ["mine.json", "300 instead of 301"]),
    "no part file": (lambda f: (f / "part1" / "graph.dgl").unlink(), [], ["part1/graph.dgl", "missing"]),
    "damaged graph": (lambda f: (f / "part1" / "graph.dgl").write_bytes(b"x" * 99), [], ["part1/graph.dgl", "cannot be read"]),
    "damaged data": (lambda f: (f / "part2" / "node_feat.dgl").write_bytes(b"x" * 99), [], ["part2/node_feat.dgl"]),
    "another part": (lambda f: shutil.copy(f / "part0" / "graph.dgl", f / "part1"), [], ["part1/graph.dgl", "disagree"]),
    "no such label": (lambda f: None, ["label=class"], ["'class'", "_N/label", "_N/feat"]),
    "no such mask": (lambda f: None, ["val=valid"], ["'valid'", "_N/val_mask"]),
    "columns": (lambda f: _change_data(f, "label", lambda a: a[:, None].repeat(1, 2)), [], ["several columns", "part1/node"]),
    "no class": (lambda f: _change_data(f, "label", lambda a: a + 0.5), [], ["not a class", "part1/node_feat.dgl", "row 1"]),
    "two splits": (lambda f: _change_data(f, "test_mask", torch.ones_like), [], ["part1/node_feat.dgl", "in two of"]),
    "nan": (lambda f: _change_data(f, "feat", _nan), [], ["part1/node_feat.dgl", "row 4, column 3"]),
    "narrow": (lambda f: _change_data(f, "feat", lambda a: a[:, :3].clone()), [], ["part1/node_feat.dgl", "11 columns"]),
    "short": (lambda f: _change_data(f, "feat", lambda a: a[:-1].clone()), [], ["part1/node_feat.dgl", "rows"]),
    "ids twice": (lambda f: _change_data(f, "orig_id", torch.zeros_like), [], ["node data _N/orig_id", "orig="]),
    "ids beyond": (lambda f: _change_data(f, "orig_id", lambda a: a + 300), [], ["node data _N/orig_id", "0 to 299"]),
    "no mapping": (lambda f: None, ["mapping=no.npy"], ["no.npy", "cannot be read"]),
    "other mapping": (lambda f: np.save(f / "no.npy", np.arange(7)), ["mapping=no.npy"], ["no.npy", "[7]", "[300]"]),
    "a name": (lambda f: None, ["name=a/b"], ["'name'", "a/b"]),
    "a buffer": (lambda f: None, ["prepare.buffer=much"], ["'prepare.buffer'"]),
    "two files": (lambda f: None, ["other.json"], ["One partition", "other.json"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_mistakes_are_answered(fault: str, written: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(written["plain"], tmp_path, dirs_exist_ok=True)
    damage, words, wanted = FAULTS[fault]
    damage(tmp_path)
    done = sargnn_here(tmp_path, "import-dgl", "mine.json", *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 5, done.stderr
    assert all(word in done.stderr for word in wanted), done.stderr
    assert not list((tmp_path / "stores").glob("*/*"))


def test_a_file_must_be_named(written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = sargnn_here(tmp_path, "import-dgl")
    assert done.returncode == 1 and "One partition" in done.stderr
    monkeypatch.chdir(written["plain"])
    assert {"mine.json", "part0/", "inverse="} <= set(candidates(["import-dgl", ""]))
    monkeypatch.chdir(tmp_path)
    folder = str(written["plain"])
    assert candidates(["import-dgl", f"{folder}/m"]) == [f"{folder}/mine.json"]


def test_a_typed_graph_without_features(written: dict[str, Path], tmp_path: Path) -> None:
    command = shlex.split(imported(tmp_path, str(written["typed"] / "mine.json"), "feat=")[-1])
    done = sargnn_here(tmp_path, *command[1:], "model.hidden=8", "epochs=1", "tracking=none")
    assert done.returncode == 0 and "paper: 148 nodes, no features" in done.stderr, done.stderr


def test_labels_of_several_types_must_be_chosen(tmp_path: Path) -> None:
    graph = typed()
    write_parts(tmp_path, graph, 2)
    dgl = import_dgl()
    for p in range(2):
        file = str(tmp_path / f"part{p}" / "node_feat.dgl")
        data = dgl.data.utils.load_tensors(file)
        dgl.data.utils.save_tensors(file, data | {"author/label": data["author/orig_id"] % 2})
    with pytest.raises(DataError, match="label=author/label"):
        dgl_partition(tmp_path / "mine.json", Names())
    assert dgl_partition(tmp_path / "mine.json", Names(labels="paper/label")).nodes.labelled == "paper"
