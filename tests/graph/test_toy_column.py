"""A column that the package has never heard of, from readers to the blocks of every plan.

It is three numbers an edge: a function of its two original ids and relation, and its number among parallel edges. Beside it
goes a narrow one, which blocks hold as a tensor. Both come from here; nothing of the package names them.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import Dataset, InMemoryReader, Reader, group_by, open_dataset
from sargnn.graph.edge_columns import EdgeColumns, EdgePiece, names_to_json
from sargnn.graph.schema import SPLITS
from sargnn.graph.store import StoreWriter
from sargnn.partition.cut import parts_of
from sargnn.partition.part import Part, one_type
from sargnn.partition.preload import Bounds, write_preloaded
from sargnn.partition.store import FORMAT_VERSION, open_part
from sargnn.plan.cover import Share
from sargnn.plan.drawn import Sample
from sargnn.plan.graph import Sharing, WorkerGraph
from sargnn.plan.layer_plan import LayerPlan, RelationBlock, Shard
from sargnn.plan.load import PlanSettings, load_plan
from sargnn.sources.dgl_partition.nodes import Names
from sargnn.sources.dgl_partition.parts import Triplet
from sargnn.sources.dgl_partition.reader import DglPartition, dgl_partition
from sargnn.sources.own.edges import EdgeList
from sargnn.sources.own.folder import arrays_reader
from sargnn.sources.own.reader import object_reader
from sargnn.sources.settings import ArraysConfig, PythonConfig
from tests.graphs import assign, nasty_graph, typed_graph, with_weights
from tests.parity.covering import spread
from tests.partition.cuts import write_parts
from tests.pool import pool
from tests.sources.dgl_files import write_parts as write_dgl
from tests.sources.own import given

FORMS = {"toy": np.dtype((np.float32, (3,))), "kind": np.dtype(np.uint8)}
Edge = tuple[int, int, int, int]
"""Source, destination, relation, number among parallel edges; the last is -1 of a loop that was added."""


def toy(source: Any, destination: Any, relation: Any, parallel: Any) -> dict[str, np.ndarray]:
    """What an edge carries."""
    source, destination = np.asarray(source, np.int64), np.asarray(destination, np.int64)
    numbers = [3.0 * source + 0.25, 5.0 * destination + 7.0 * np.asarray(relation), np.broadcast_to(parallel, source.shape)]
    return {"toy": np.stack(numbers, 1).astype(np.float32), "kind": ((source + 2 * destination) % 251).astype(np.uint8)}


def ends_of(graph: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sources, destinations, relations, and numbers among parallel edges, in the order of the dataset."""
    source, destination = np.asarray(graph.indices), np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    relation = np.zeros(graph.num_edges, np.int64) if graph.relation is None else np.asarray(graph.relation).astype(np.int64)
    ends = zip(source.tolist(), destination.tolist(), relation.tolist(), strict=True)
    return source, destination, relation, number_parallel(ends, Counter())


def number_parallel(edges: Iterable[tuple[int, ...]], seen: Counter[tuple[int, ...]]) -> np.ndarray:
    """How many edges with the same ends came before each. ``seen``: counts so far."""
    numbers = []
    for ends in edges:
        numbers.append(seen[ends])
        seen[ends] += 1
    return np.array(numbers, np.int64)


def with_toys(graph: Dataset) -> Dataset:
    columns = graph.columns
    for name, array in toy(*ends_of(graph)).items():
        columns = columns.put(name, array)
    return dataclasses.replace(graph, columns=columns)


GRAPHS = {"nasty": with_toys(nasty_graph(150, seed=1)), "typed": with_toys(typed_graph())}
EDGES = {kind: set(zip(*(end.tolist() for end in ends_of(graph)), strict=True)) for kind, graph in GRAPHS.items()}


def check_edges(columns: EdgeColumns, source: np.ndarray, destination: np.ndarray, relation: np.ndarray) -> list[Edge]:
    """Every edge's row is what its ends say; the edges with their numbers."""
    rows = columns.tensor("toy").numpy()
    assert rows.dtype == np.float32 and rows.shape == (len(source), 3)
    added = (rows == 0).all(1)
    assert (source[added] == destination[added]).all()
    parallel = rows[:, 2].astype(np.int64)
    for name, wanted in toy(source, destination, relation, parallel).items():
        wanted[added] = 0
        numbers = columns.tensor(name)
        assert numbers.dtype == torch.from_numpy(wanted).dtype
        np.testing.assert_array_equal(numbers.numpy(), wanted)
    parallel[added] = -1
    return list(zip(*(end.tolist() for end in (source, destination, relation, parallel)), strict=True))


def block_edges(part: RelationBlock, relation: int | None = None) -> list[Edge]:
    block = part.block
    source, destination = block.src_ids[block.src.long()], block.dst_ids[block.dst_per_edge()]
    numbers = np.full(block.num_edges, part.relation if relation is None else relation)
    return check_edges(block.columns, source.numpy(), destination.numpy(), numbers)


def plan_edges(plan: LayerPlan) -> list[Edge]:
    """All edges that a plan aggregates, its own and those for peers."""
    if plan.relations is not None:
        joined, edge_types = plan.relations.joined
        source, destination = (ends.numpy() for ends in joined.edge_ends())
        rows = EdgeColumns.of({name: joined.edge_column(name).numpy() for name in FORMS})
        together = check_edges(rows, source, destination, edge_types.numpy())
        shards = [(r, shard) for r, one in enumerate(plan.relations.plans) for shard in _shards(one)]
        alone = [edge for r, shard in shards for part in shard.relations for edge in block_edges(part, r)]
        assert sorted(alone) == sorted(together)
        return alone
    edges = [edge for shard in _shards(plan) for part in shard.relations for edge in block_edges(part)]
    if plan.partials is not None:
        edges += [edge for shard in plan.partials.shards.values() for part in shard.relations for edge in block_edges(part)]
        if (joint := plan.partials.joint) is not None:
            blocks = zip(joint.shard.relations, joint.scales, strict=True)
            edges += [edge for part, scale in blocks if scale is not None for edge in block_edges(part)]
    return edges


def _shards(plan: LayerPlan) -> list[Shard]:
    return list(plan.shards.values()) if plan.shards is not None else [plan.merged] if plan.merged is not None else []


def layer_of(plan: LayerPlan) -> tuple[list[Edge], list[int]]:
    """Its edges on this rank, and the ids of the rows that it computes here."""
    runs = [plan.node_ids[at : at + n] for at, _, n in plan.own_runs()]
    return plan_edges(plan), torch.cat(runs).tolist()


Layers = list[tuple[list[Edge], list[int]]]


def stored_part(folder: Path, kind: str, partitioner: str, world: int, rank: int) -> Part:
    """A part as it comes out of a store on disk, which the first rank writes."""
    graph, path = GRAPHS[kind], folder / "parts"
    if not path.exists():
        with StoreWriter(path, "partition", FORMAT_VERSION) as writer:
            write_parts(writer, graph, *group_by(assign(graph, partitioner, world), world))
            writer.meta = {"schema": graph.schema.to_json(), "num_classes": 5} | names_to_json(graph.columns.forms)
    return open_part(path, rank)


def run(
    group: Group, folder: Path | None, mode: str, partitioner: str, graph: tuple[str, bool], view: str, aggregate: str
) -> Layers:
    kind, loops = graph
    if folder is not None:
        part = stored_part(folder, kind, partitioner, group.world, group.rank)
    else:
        part = list(parts_of(GRAPHS[kind], assign(GRAPHS[kind], partitioner, group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode))
    share = {"post": None, "pre": Share(None, 1.0), "least": Share(1.0, 1.0)}[aggregate]
    worker = WorkerGraph(
        part,
        engine.exchange,
        PlanSettings(engine.group.rank, engine.mode.layout, message_rows=13),
        add_self_loops=loops,
        by_relation=view == "relations",
        sharing=None if share is None or engine.mode.layout == "merged" else Sharing(lambda counts: [share] * len(counts)),
    )
    wanted = np.asarray(part.split) == SPLITS["valid"]
    if view in ("full", "relations"):
        flows = [worker.whole(2)]
    elif view == "mfg":
        flows = [worker.flow(wanted, [True, True])]
    elif view == "micro-batches":
        flows = [worker.flow(wanted & (np.asarray(part.node_ids) % 2 == k), [True, True]) for k in range(2)]
    else:
        sample = Sample((2, 3), 5, 1) if view == "samples" else None
        flows = [worker.drawer.flow(worker.drawer.layers(np.flatnonzero(wanted), [True, True], sample, outward=True))]
    plans = [plan for flow in flows for plan in flow.plans]
    if view != "relations":  # those that run in turn are put away on disk
        plans = pickle.loads(pickle.dumps(plans))
    return [layer_of(plan) for plan in plans]


MODES = ["sar", "no_remat", "one_shot", "domain_parallel"]
VIEWS = ["full", "mfg", "micro-batches", "drawn", "samples"]
RELATIONS = [
    (mode, world, "random", "typed", False, "relations", "post", world == 4)
    for mode, world in (("sar", 1), ("domain_parallel", 2), ("no_remat", 4), ("one_shot", 7))
]
AXES: Any = (
    MODES,
    [1, 2, 4, 7],
    ["metis", "random", "given"],
    [("nasty", False), ("nasty", True), ("typed", False)],
    VIEWS,
    ["post", "pre", "least"],
    [False, True],
)
CASES = spread(*AXES) + RELATIONS


@pytest.mark.parametrize(("mode", "world", "partitioner", "kind", "loops", "view", "aggregate", "on_disk"), CASES)
def test_in_every_plan(
    mode: str, world: int, partitioner: str, kind: str, loops: bool, view: str, aggregate: str, on_disk: bool, tmp_path: Path
) -> None:
    """Every edge of every block has its own row; together the ranks have all edges into the rows that a layer computes."""
    ranks = pool(world)(run, tmp_path if on_disk else None, mode, partitioner, (kind, loops), view, aggregate)
    edges = set(EDGES[kind])
    if loops:
        edges = {edge for edge in edges if edge[0] != edge[1]} | {(v, v, 0, -1) for v in range(GRAPHS[kind].num_nodes)}
    for layers in zip(*ranks, strict=True):
        given = [edge for own, _ in layers for edge in own]
        computed = {node for _, ids in layers for node in ids}
        assert given and len(given) == len(set(given)) and set(given) <= edges
        if view != "samples":
            assert set(given) == {edge for edge in edges if edge[1] in computed}


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("bounds", [Bounds(2), Bounds(2, fanout=2)], ids=["exact", "bounded"])
def test_in_copies_of_other_servers(kind: str, bounds: Bounds, tmp_path: Path) -> None:
    graph = GRAPHS[kind]
    offsets, nodes = group_by(assign(graph, "metis", 4), 4)
    with StoreWriter(tmp_path / "parts", "partition", FORMAT_VERSION) as writer:
        write_preloaded(writer, graph, offsets, nodes, 2, bounds)
        meta = {"schema": graph.schema.to_json(), "num_classes": 5, "preload": {}}
        writer.meta = meta | names_to_json(graph.columns.forms)
    for rank in range(4):
        part = open_part(tmp_path / "parts", rank)
        edges = plan_edges(load_plan(part, PlanSettings(rank % 2, "sharded")))
        own = set(part.node_ids[part.inner].tolist())
        assert len(edges) == len(part.edge_src) == len(set(edges)) and set(edges) <= EDGES[kind]
        assert bounds.fanout is not None or {edge for edge in EDGES[kind] if edge[1] in own} <= set(edges)


def test_between_nodes_of_one_type() -> None:
    graph = GRAPHS["typed"]
    labelled = graph.schema.node_types.index("paper")
    for rank, part in enumerate(parts_of(graph, assign(graph, "random", 3), 3)):
        alone = one_type(part, rank, labelled)
        assert alone.columns.forms == FORMS and len(alone.columns["toy"]) == len(alone.edge_src) > 0
        plan = load_plan(alone, PlanSettings(rank, "sharded"))
        source, destination = (ends.numpy() for ends in plan.edge_ends())
        rows = plan.edge_column("toy").numpy()
        np.testing.assert_array_equal(rows[:, 0], (3.0 * source + 0.25).astype(np.float32))
        assert {0} == set(((rows[:, 1] - 5.0 * destination) % 7).tolist())  # its relation's number, 7 times


# Forms of data


class ToyReader(InMemoryReader):
    """A reader outside of the package."""

    def __init__(self, graph: Dataset) -> None:
        self.graph = graph

    def identity(self) -> dict[str, Any]:
        return {"reader": "toy"}

    def read(self) -> Dataset:
        return self.graph


class ToyEdges(EdgeList):
    """The edges of an own graph, with columns beside them."""

    def __init__(self, edges: EdgeList, relation: int = 0, offsets: tuple[int, int] = (0, 0)) -> None:
        self.edges, self.relation, self.offsets = edges, relation, offsets
        self.name, self.count, self.weights_name = edges.name, edges.count, edges.weights_name
        self.forms = {**edges.forms, **FORMS}

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        seen: Counter[tuple[int, ...]] = Counter()
        for source, destination, columns in self.edges.pieces(min(rows, 77)):
            parallel = number_parallel(zip(source.tolist(), destination.tolist(), strict=True), seen)
            ends = source + self.offsets[0], destination + self.offsets[1]
            for name, array in toy(*ends, self.relation, parallel).items():
                columns = columns.put(name, array)
            yield source, destination, columns

    def digest(self) -> str:
        return self.edges.digest()


class ToyParts(DglPartition):
    """A DGL partition whose edges carry them."""

    def edges(self, p: int) -> dict[Triplet, EdgePiece]:
        pieces = {}
        for triplet, (source, destination, columns) in super().edges(p).items():
            ends = zip(source.tolist(), destination.tolist(), strict=True)  # parallel edges are in one part
            for name, array in toy(source, destination, 0, number_parallel(ends, Counter())).items():
                columns = columns.put(name, array)
            pieces[triplet] = (source, destination, columns)
        return pieces

    def toyed(self) -> Reader:
        reader: Any = self.reader
        reader.forms = FORMS
        return reader


def toyed(reader: Any) -> Reader:
    """A reader of own graphs whose edges carry them; of a typed graph relations are sorted."""
    if not reader.graph.typed:
        reader._edges = ToyEdges(reader._edges)
        reader.forms = reader._edges.forms
        return reader
    types = list(reader.graph.nodes)
    counts = np.concatenate([[0], np.cumsum([nodes.count for nodes in reader.graph.nodes.values()])])
    edges = {}
    for relation, (triplet, edge_list) in enumerate(reader.graph.edges.items()):
        first, second = (int(counts[types.index(triplet[k])]) for k in (0, 2))
        edges[triplet] = ToyEdges(edge_list, relation, (first, second))
    reader.graph = dataclasses.replace(reader.graph, edges=edges)
    return reader


OWN: Any = {
    "add_inverse_edges": False, "normalize_features": False, "homogenize": False, "split": None, "split_seed": 0,
    "add_self_loops": False,
}  # fmt: skip


def reader_of(form: str, folder: Path) -> Reader:
    kind, _, name = form.partition(" ")
    if name == "reader":
        return ToyReader(GRAPHS[kind])
    if name == "dgl":
        write_dgl(folder / "given", GRAPHS[kind], 2)
        return ToyParts(**vars(dgl_partition(folder / "given" / "mine.json", Names()))).toyed()
    graph = with_weights(GRAPHS[kind])
    arrays = given.arrays_of(graph) if kind == "nasty" else given.typed_arrays_of(graph)
    if name == "folder":
        root = given.save_arrays(folder / "given", arrays)
        return toyed(arrays_reader(ArraysConfig("arrays", **OWN, root=str(root))))
    return toyed(object_reader(arrays, PythonConfig("python", **OWN, args={}), "graph", "the graph", None))


FORMS_OF_DATA = ["nasty dgl", *(f"{kind} {name}" for kind in GRAPHS for name in ("reader", "arrays", "folder"))]


@pytest.mark.parametrize("form", FORMS_OF_DATA)
def test_in_every_form_of_data(form: str, tmp_path: Path) -> None:
    """Through a store, sorted on disk in many buckets where the reader streams; and on to parts."""
    reader_of(form, tmp_path).write(tmp_path / "store", 1 << 14)
    graph = open_dataset(tmp_path / "store", verify=True)
    assert graph.columns.forms == FORMS | ({"weight": np.dtype(np.float32)} if form.endswith(("arrays", "folder")) else {})
    source, destination, relation, _ = ends_of(graph)
    edges = check_edges(graph.columns, source, destination, relation)
    assert len(edges) == len(set(edges)) == graph.num_edges == GRAPHS[form.split()[0]].num_edges
    for rank, part in enumerate(parts_of(graph, assign(graph, "random", 3), 3)):
        own = set(part.node_ids.tolist())
        plan = load_plan(part, PlanSettings(rank, "merged"))
        assert set(plan_edges(plan)) == {edge for edge in edges if edge[1] in own}
