"""Partitioners for graphs that METIS cannot hold: the streamed symmetric graph, KaMinPar and its file, streaming, balance."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import ConfigError
from sargnn.graph import dataset as dataset_module
from sargnn.graph.dataset import by_destination
from sargnn.interop import kaminpar as interop
from sargnn.interop.kaminpar import Rows
from sargnn.memory.plan_traffic import CutEdges
from sargnn.partition import kaminpar, memory, stream
from sargnn.partition.balance import Room, even_out, node_weights, weight_columns
from sargnn.partition.kaminpar import goes_both_ways, rows_both_ways
from sargnn.partition.memory import check, cutting_bytes
from sargnn.partition.simple import choose
from tests.configs import config as run_config
from tests.graphs import assign, nasty_graph, typed_graph
from tests.in_process import sargnn_here
from tests.partition.cuts import config, cut_of, matrix, two_ways

GRAPHS = {"one way": nasty_graph(), "typed": typed_graph(), "both ways": two_ways(), "but for one": two_ways(whole=False)}


@pytest.mark.parametrize("chunk", [1, 64, 1 << 22])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_symmetric_graph(name: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row block by row block it is A + A^T, or half of it where A = A^T."""
    monkeypatch.setattr(dataset_module, "_BLOCK_EDGES", chunk)
    monkeypatch.setattr(kaminpar, "_CHUNK_EDGES", chunk)
    graph, want = GRAPHS[name], matrix(GRAPHS[name])
    assert goes_both_ways(graph) == (name == "both ways")
    rows = list(rows_both_ways(graph, tmp_path, 40 * chunk))
    assert [one.first for one in rows] == np.cumsum([0, *(len(one.degrees) for one in rows)])[:-1].tolist()
    assert np.array_equal(np.concatenate([one.degrees for one in rows]), np.diff(want.indptr))
    assert np.array_equal(np.concatenate([one.neighbours for one in rows]), want.indices)
    share = 2 if name == "both ways" else 1
    assert np.array_equal(np.concatenate([one.weights for one in rows]) * share, want.data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["one way", "both ways"])
def test_the_file_is_read_as_it_was_meant(name: str, weighted: bool, tmp_path: Path) -> None:
    import kaminpar as library

    graph, want = GRAPHS[name], matrix(GRAPHS[name])
    weights = node_weights(graph, "both") if weighted else None
    path = tmp_path / "graph.parhip"
    assert interop.write_graph(path, graph.num_nodes, rows_both_ways(graph, tmp_path, 1 << 20), weights) == want.nnz
    found = library.load_graph(str(path), library.GraphFileFormat.PARHIP, compress=True)
    assert (found.n(), found.m(), found.is_node_weighted()) == (graph.num_nodes, want.nnz, weighted)
    share = 2 if name == "both ways" else 1
    for v in range(graph.num_nodes):
        row = slice(want.indptr[v], want.indptr[v + 1])
        own = list(zip(want.indices[row].tolist(), (want.data[row] // share).tolist(), strict=True))
        assert sorted(found.neighbors(v)) == own
        assert found.node_weight(v) == (1 if weights is None else weights[v])
    assert [one.name for one in tmp_path.iterdir()] == ["graph.parhip"]


def test_equal_weights_are_left_out(tmp_path: Path) -> None:
    """A graph whose edges are all there once has no weights in its file, so that less is held."""
    indptr, indices = by_destination(np.array([0, 1, 2]), np.array([1, 2, 3]), 4)
    graph = dataclasses.replace(nasty_graph(40), indptr=np.append(indptr, [3] * 36), indices=indices)
    path = tmp_path / "graph.parhip"
    interop.write_graph(path, 40, rows_both_ways(graph, tmp_path, 1 << 20))
    assert path.stat().st_size == 24 + 8 * 41 + 4 * 6


def test_weights_that_are_equal_in_the_last_rows_only_stay(tmp_path: Path) -> None:
    path = tmp_path / "graph.parhip"
    rows = [
        Rows(0, np.array([2, 1, 1]), np.array([1, 2, 0, 0]), np.array([1, 2, 1, 2])),
        Rows(3, np.array([1, 1]), np.array([4, 3]), np.array([1, 1])),
    ]
    assert interop.write_graph(path, 5, iter(rows)) == 6
    *_, neighbours, weights, of_nodes = interop.GraphFile(path).arrays
    assert neighbours.tolist() == [1, 2, 0, 0, 4, 3] and weights.tolist() == [1, 2, 1, 2, 1, 1] and not len(of_nodes)


@pytest.mark.parametrize("name", ["kaminpar", "stream"])
def test_cut_of_communities(name: str) -> None:
    """About that of METIS, far below a random one."""
    graph = nasty_graph(3000)
    cuts = {one: cut_of(graph, assign(graph, one, 4)) for one in ("metis", "random", name)}
    assert cuts[name] < 0.6 * cuts["random"] and cuts[name] < cuts["metis"] + 0.15


@pytest.mark.parametrize("balance", ["nodes", "edges", "both"])
@pytest.mark.parametrize("name", ["metis", "kaminpar", "stream"])
def test_balance(name: str, balance: str) -> None:
    """What is to be balanced is, within the imbalance and a node."""
    graph = nasty_graph(2000)
    functions = {"metis": "metis:assign", "kaminpar": "kaminpar:assign", "stream": "stream:assign"}
    from sargnn.resolve import load_attribute

    module, _, function = functions[name].partition(":")
    run = load_attribute(f"sargnn.partition.{module}:{function}")
    part = run(graph, 5, config(name, balance=balance, imbalance=0.05))
    weights = weight_columns(graph, balance)[:, 0]
    loads = np.bincount(part, weights=weights, minlength=5)
    assert loads.max() <= 1.05 * loads.mean() + weights.max()
    assert part.dtype == np.int32 and part.min() >= 0 and part.max() < 5


@pytest.mark.parametrize("name", ["kaminpar", "stream"])
def test_the_labelled_type_and_the_total_are_balanced(name: str) -> None:
    typed = typed_graph()
    part = assign(typed, name, 4)
    labelled = int(typed.schema.types_of(np.flatnonzero(np.asarray(typed.split) > 0)[:1])[0])
    of_type = np.bincount(part[typed.schema.types_of(np.arange(typed.num_nodes)) == labelled], minlength=4)
    assert np.bincount(part, minlength=4).max() <= 1.05 * typed.num_nodes / 4 + 1
    assert of_type.max() <= 1.05 * of_type.mean() + 1


def test_even_out_moves_what_costs_least() -> None:
    """All nodes of two cliques in one part: those of the second, which have fewer neighbours there, go."""
    first, second = np.arange(12), np.arange(12, 16)
    pairs = [(u, v) for clique in (first, second) for u in clique for v in clique if u != v]
    source, destination = np.array(pairs).T
    indptr, indices = by_destination(source, destination, 24)
    graph = dataclasses.replace(nasty_graph(24), indptr=indptr, indices=indices)
    part = np.array([0] * 16 + [1] * 8, np.int32)
    even_out(graph, part, 2, np.ones((24, 1), np.int64), 0.0)
    assert part[:12].tolist() == [0] * 12 and part[12:].tolist() == [1] * 12


def test_every_pass_counts() -> None:
    graph = nasty_graph(3000)
    cuts = [cut_of(graph, stream.assign(graph, 4, config("stream", passes=passes))) for passes in (1, 4, 12)]
    assert cuts[0] > cuts[1] >= cuts[2] - 0.02


def test_small_graphs_and_those_without_edges() -> None:
    for name in ("kaminpar", "stream"):
        graph = nasty_graph(40)
        empty = dataclasses.replace(graph, indptr=np.zeros(41, np.int64), indices=graph.indices[:0])
        assert np.bincount(assign(empty, name, 4)).max() <= 11
        assert assign(empty, name, 1).tolist() == [0] * 40
        few = dataclasses.replace(empty, indptr=np.zeros(4, np.int64), labels=graph.labels[:3])
        assert sorted(assign(few, name, 3).tolist()) == [0, 1, 2]


def test_no_disk_for_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ConfigError, match="(?s)the disk.*partitioner=stream"):
        kaminpar.assign(nasty_graph(), 4, config("kaminpar"), Room(tmp_path))


def test_a_file_that_it_cannot_read_ends_it_alone(tmp_path: Path) -> None:
    """It ends its own process, and what it said is the answer's."""
    path = tmp_path / "graph.parhip"
    path.write_bytes(np.array([2 | 1 | 8, 10**6, 10**7], np.uint64).tobytes())
    with pytest.raises(ConfigError, match="(?s)KaMinPar could not cut.*partitioner=metis"):
        interop.cut(path, 4, seed=0, imbalance=0.03, threads=1, preset="fast")


def test_what_takes_too_much_names_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KAMINPAR_FIXED_BYTES", 0)  # of which small graphs' estimates consist
    graph = nasty_graph()
    needs = {name: cutting_bytes(graph, name) for name in ("metis", "kaminpar", "stream", "random")}
    assert needs["metis"] > 2 * needs["kaminpar"] > 2 * needs["stream"] > needs["random"] == 0
    with pytest.raises(ConfigError, match="(?s)METIS would need.*partitioner=kaminpar, about.*partitioner=stream, about.*auto"):
        check(graph, "metis", "original", 4, int(needs["metis"]) - 1)
    with pytest.raises(ConfigError, match="(?s)KaMinPar would need.*partitioner=stream, about"):
        check(graph, "kaminpar", "original", 4, int(needs["kaminpar"]) - 1)
    check(graph, "metis", "original", 4, int(needs["metis"]) - 1, cut=True)  # gone on with


def test_auto_takes_the_best_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KAMINPAR_FIXED_BYTES", 0)
    graph = nasty_graph()
    needs = {name: cutting_bytes(graph, name) for name in ("metis", "kaminpar")}
    for limit, name in (
        (2 * needs["metis"], "metis"), (2 * needs["metis"] - 2, "kaminpar"), (needs["kaminpar"], "kaminpar"),
        (needs["kaminpar"] - 2, "stream"),
    ):  # fmt: skip
        assert choose(graph, config("auto"), math.ceil(limit)).name == name
    assert choose(graph, config("random"), 0).name == "random"


def test_memory_that_the_documents_name() -> None:
    """Of papers100M, both ways: METIS 286 GB, KaMinPar 20 or, of the whole graph, 48, streaming 4."""
    entries, nodes = 2 * 1_615_685_872, 111_059_956
    assert memory._METIS_BYTES * entries + memory._NODE_BYTES * nodes == pytest.approx(286e9, rel=0.02)
    assert memory.whole_bytes(nodes, entries) == pytest.approx(48e9, rel=0.02)
    clusters = memory.whole_bytes(0, memory.MOST_LEFT * entries) + memory.CLUSTER_NODE_BYTES * nodes
    assert clusters == pytest.approx(19.7e9, rel=0.02)
    assert memory.STREAM_NODE_BYTES * nodes == pytest.approx(4e9, rel=0.02)


@pytest.mark.long
def test_partitioners_side_by_side(tmp_path: Path) -> None:
    """A table that an 80 column terminal holds, figures that a store made alone has, and a picture."""
    words = ["partition", "dataset.num_nodes=3000", "world=4", "store_dir=stores"]
    done = sargnn_here(tmp_path, *words, "compare=metis,kaminpar,stream,random", "out=pictures")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if "." in line and len(line.split()) > 5}
    assert list(rows) == ["metis", "kaminpar", "stream", "random"]
    assert (tmp_path / "pictures" / "partitioners.png").read_bytes().startswith(b"\x89PNG")
    alone = sargnn_here(tmp_path, *words, "partitioner=random")
    halo = re.search(r"(\d+) travel in", alone.stderr + alone.stdout)
    assert halo is not None and halo.group(1) in rows["random"]
    shown = sargnn_here(tmp_path, *words, "compare=metis,random", "--cfg", "job")
    assert shown.returncode == 0 and "compare:\n- metis\n- random" in shown.stdout
    with_model = sargnn_here(tmp_path, *words, "compare=random,stream", "model=gat", "partitioner.passes=2")
    assert with_model.returncode == 0 and "model=gat mode=sar" in with_model.stdout + with_model.stderr
    for wrong, says in (("partitioner.passes=2", "None of the partitioners"), ("modle=gat", "allowed: mode, model")):
        refused = sargnn_here(tmp_path, *words, "compare=metis,random", wrong)
        assert refused.returncode == 1 and says in refused.stderr
    for name in ("given", "metsi"):
        unknown = sargnn_here(tmp_path, *words, f"compare=metis,{name}")
        assert unknown.returncode == 1 and "no such partitioner" in unknown.stderr
    typed = sargnn_here(
        tmp_path, "partition", "dataset=mag_like", "dataset.scale=0.001", "world=2", "store_dir=stores", "compare=random"
    )
    assert typed.returncode == 0 and re.search(r"random .* - ", typed.stdout)  # no bytes of a model that knows no types
    many = sargnn_here(tmp_path, "partition", "dataset.num_nodes=60", "world=61", "store_dir=stores", "compare=metis")
    assert many.returncode == 1 and "at most 60" in many.stderr
    one = sargnn_here(tmp_path, "partition", "world=1", "store_dir=stores", "compare=metis")
    assert one.returncode == 1 and "Several parts are compared" in one.stderr


def test_fewest_messages_equal_a_search() -> None:
    """Of a graph so small that all covers can be tried."""
    rng = np.random.default_rng(5)
    source, destination = rng.integers(8, size=(2, 14))
    indptr, indices = by_destination(source, destination, 8)
    graph = dataclasses.replace(nasty_graph(8), indptr=indptr, indices=indices)
    part = (np.arange(8) % 2).astype(np.int32)
    total = 0
    for p in range(2):
        pairs = {(u, v) for u, v in zip(source.tolist(), destination.tolist(), strict=True) if part[v] == p != part[u]}
        ends = [("s", u) for u in sorted({u for u, _ in pairs})] + [("d", v) for v in sorted({v for _, v in pairs})]
        total += min(
            len(some) for k in range(len(ends) + 1) for some in combinations(ends, k)
            if all(("s", u) in some or ("d", v) in some for u, v in pairs)
        )  # fmt: skip
    cut = CutEdges.of(graph, part, 2)
    assert cut is not None
    fewest = cut.fewest()
    assert fewest.rows + fewest.partials == total


def test_auto_is_said_by_name(tmp_path: Path) -> None:
    done = sargnn_here(tmp_path, "partition", "dataset.num_nodes=400", "world=2", "partitioner=auto")
    assert done.returncode == 0 and "by metis into 2" in done.stderr + done.stdout
    again = sargnn_here(tmp_path, "partition", "dataset.num_nodes=400", "world=2", "partitioner=metis")
    assert again.stdout == done.stdout  # the same store
    other = tmp_path / "other"
    other.mkdir()
    assert sargnn_here(other, "partition", "dataset.num_nodes=400", "world=2", "partitioner=stream").returncode == 0
    there = sargnn_here(other, "partition", "dataset.num_nodes=400", "world=2", "partitioner=auto")
    assert "by stream into 2" in there.stderr + there.stdout  # one that has cut already
    bounds = ("servers=2", "preload=shared", "preload.max_hop=1", "partitioner=auto")
    refused = sargnn_here(other, "train", "dataset.num_nodes=400", "world=4", "tracking=none", *bounds)
    assert refused.returncode == 1 and "may cut otherwise" in refused.stderr


def test_a_partitioner_of_ones_own_names_its_arguments_as_it_likes(tmp_path: Path) -> None:
    from sargnn.partition import prepare

    (tmp_path / "mine.py").write_text(
        "import numpy\ndef f(graph, parts, s):\n    return numpy.arange(graph.num_nodes) % parts\n"
    )
    run = run_config("world=2")
    own = dataclasses.replace(run, partitioner=dataclasses.replace(run.partitioner, target=f"{tmp_path / 'mine.py'}:f"))
    assert prepare._assigner(own)(nasty_graph(), 2)[:4].tolist() == [0, 1, 0, 1]


def test_extreme_settings() -> None:
    """No imbalance, a large seed; streaming's seed says which of equal parts is taken."""
    graph = nasty_graph()
    part = kaminpar.assign(graph, 4, dataclasses.replace(config("kaminpar", imbalance=0.0), seed=2**31 + 5))
    assert np.bincount(part, minlength=4).max() <= 76
    one, other = (stream.assign(graph, 4, dataclasses.replace(config("stream"), seed=seed)) for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_papers_go_both_ways(tmp_path: Path) -> None:
    """Every edge is there in both directions, parallel ones twice, as OGB adds inverse edges."""
    from sargnn.graph.dataset import open_dataset
    from sargnn.sources.generated.lookalike import Lookalike
    from sargnn.sources.settings import LookalikeConfig

    found = {}
    for both in (False, True):
        settings: Any = dict(name="papers_like", scale=2e-5, seed=0, normalize_features=False, version=2)
        reader = Lookalike(LookalikeConfig(**settings, add_inverse_edges=both))
        reader.write(tmp_path / str(both))
        graph = open_dataset(tmp_path / str(both), verify=True)
        destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        found[both] = np.stack([np.asarray(graph.indices, np.int64), destination])
        assert ("add_inverse_edges" in reader.identity()) == both
    one, inverse = found[False], found[False][::-1]
    want = np.concatenate([one, inverse], 1)
    assert sorted(map(tuple, want.T.tolist())) == sorted(map(tuple, found[True].T.tolist()))


def test_order_by_kaminpar_brings_neighbours_together(tmp_path: Path) -> None:
    """At least as many edges between rows less than a cluster apart as with METIS's clusters."""
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.order import KaMinPar, order_nodes
    from sargnn.sources.generated.lookalike import Lookalike
    from sargnn.sources.settings import LookalikeConfig

    Lookalike(LookalikeConfig(name="products_like", scale=0.01, seed=0, normalize_features=False)).write(tmp_path / "store")
    dataset = open_dataset(tmp_path / "store", verify=False)
    part = (np.arange(dataset.num_nodes) % 2).astype(np.int32)
    near = {}
    for name, clusters in (("metis", None), ("kaminpar", KaMinPar(tmp_path, 1))):
        offsets, nodes = order_nodes(dataset, part, 2, "locality", clusters)
        assert sorted(nodes.tolist()) == list(range(dataset.num_nodes)) and (part[nodes[: offsets[1]]] == 0).all()
        position = np.argsort(nodes)
        destination = position[np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))]
        near[name] = float((np.abs(destination - position[dataset.indices]) < 1000).mean())
    assert near["kaminpar"] > 0.97 * near["metis"]


def test_what_is_left_of_a_step() -> None:
    """Once five seconds have passed, from what was done in them; a step's own beginning counts."""
    from sargnn.tracking.progress import TimeLeft

    left = TimeLeft()
    assert left.of("cutting", 0, 100, 50.0) == "" == left.of("cutting", 2, 100, 52.0)
    assert left.of("cutting", 10, 100, 60.0) == " (about 90 s left)"
    assert left.of("cutting", 100, 100, 150.0) == " (about 0 s left)" and left.of("cutting", 0, 100, 151.0) == ""
    assert left.of("cutting", 10, 100, 161.0) == " (about 90 s left)"
    assert left.of("ordering", 10, 100, 70.0) == "" == left.of("ordering", None, None, 90.0)
