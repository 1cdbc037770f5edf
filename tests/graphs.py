"""Small graphs with everything that goes wrong: isolated nodes, parallel edges, self-loops, one-way edges."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

import numpy as np

from sargnn.config.choices import Task
from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.graph.schema import SPLITS, Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.partition import PARTITIONERS
from sargnn.resolve import resolve
from sargnn.sources.links import draw_links

NUM_CLASSES, NUM_FEATURES = 5, 11


def nasty_graph(num_nodes: int = 300, seed: int = 0) -> Dataset:
    """A directed graph whose last tenth of nodes is isolated, with parallel edges and self-loops."""
    rng = np.random.default_rng(seed)
    connected = num_nodes * 9 // 10
    community = np.arange(connected) * 6 // connected
    source = rng.integers(connected, size=4 * connected)
    near = np.minimum(source + rng.integers(1, 20, size=len(source)), connected - 1)
    destination = np.where(rng.random(len(source)) < 0.8, near, rng.integers(connected, size=len(source)))
    twice = rng.integers(len(source), size=40)  # parallel edges
    loops = rng.integers(connected, size=15)
    source = np.concatenate([source, source[twice], loops])
    destination = np.concatenate([destination, destination[twice], loops])
    indptr, indices = by_destination(source, destination, num_nodes)
    labels = rng.integers(NUM_CLASSES, size=num_nodes)
    labels[:connected] = np.where(rng.random(connected) < 0.7, community % NUM_CLASSES, labels[:connected])
    split = rng.choice([0, *SPLITS.values()], p=[0.1, 0.5, 0.2, 0.2], size=num_nodes).astype(np.uint8)
    features = rng.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32)
    return Dataset.homogeneous("nasty", NUM_CLASSES, features, labels.astype(np.int64), split, indptr, indices)


ODD_NAMES = ("http://x", "", "a \"b\" c: 'd', e", "n" * 300, "[/red].%2F\n../y")
"""Names that DGL takes for node types and relations, and that no file can have, or few can."""


def with_odd_names(dataset: Dataset) -> Dataset:
    """A typed graph whose first node types and relations are called so."""
    schema = dataset.schema
    types = (*ODD_NAMES, *schema.node_types)[: len(schema.node_types)]
    names = (*ODD_NAMES[::-1], *(one.name for one in schema.relations[len(ODD_NAMES) :]))
    relations = tuple(one._replace(name=name) for one, name in zip(schema.relations, names, strict=True))
    return dataclasses.replace(dataset, schema=dataclasses.replace(schema, node_types=types, relations=relations))


def typed_graph(seed: int = 0) -> Dataset:
    """Five node types: two without features, two with features of different widths, one isolated. Seven relations: two between
    nodes of one type, with self-loops and parallel edges, and one without edges."""
    rng = np.random.default_rng(seed)
    counts = {"author": 90, "field": 12, "org": 20, "paper": 148, "venue": 30}
    types = list(counts)

    def edges(source: str, name: str, destination: str, number: int, *, near: bool = True) -> Edges:
        a, b = counts[source], counts[destination]
        sources = rng.integers(a, size=number)
        destinations = (
            (sources * b // max(a, 1) + rng.integers(-3, 4, size=number)) % b if near else rng.integers(b, size=number)
        )
        return Edges(Relation(types.index(source), name, types.index(destination)), sources, destinations)

    cites = edges("paper", "cites", "paper", 500)
    again = rng.integers(500, size=30)  # parallel edges
    loops = rng.integers(148, size=10)
    cites = Edges(
        cites.relation,
        np.concatenate([cites.sources, cites.sources[again], loops]),
        np.concatenate([cites.destinations, cites.destinations[again], loops]),
    )
    writes = edges("author", "writes", "paper", 350)
    relations = [
        writes,
        cites,
        edges("paper", "has", "field", 300, near=False),
        edges("org", "employs", "author", 60),
        edges("paper", "retracts", "paper", 0),
        edges("field", "under", "field", 15),
        writes.inverse(),
        edges("field", "of", "paper", 200, near=False),
    ]
    classes = np.arange(148) * 6 // 148 % NUM_CLASSES
    labels = np.where(rng.random(148) < 0.7, classes, rng.integers(NUM_CLASSES, size=148))
    split = rng.choice([0, *SPLITS.values()], p=[0.1, 0.5, 0.2, 0.2], size=148).astype(np.uint8)
    widths = {"org": 4, "paper": NUM_FEATURES}
    features = [rng.standard_normal((n, widths.get(t, 0))).astype(np.float32) for t, n in counts.items()]
    return typed_dataset("typed", NUM_CLASSES, types, features, relations, types.index("paper"), labels, split)


def knowledge_graph(num_nodes: int = 60, seed: int = 0, relations: int = 3, share: float = 0.6) -> Dataset:
    """One type; each relation has a share of 500 pairs of nodes. Of three most pairs are in two of them, and some in all."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(num_nodes, size=(2, 500))
    edges = [Edges(Relation(0, f"r{number}", 0), *pairs[:, rng.random(500) < share]) for number in range(relations)]
    features = [rng.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32)]
    labels, split = np.zeros(num_nodes, np.int64), np.ones(num_nodes, np.uint8)
    return typed_dataset("triples", 2, ["thing"], features, edges, 0, labels, split)


def asked_graph(num_nodes: int = 40, pairs: int = 300, shares: tuple[float, ...] = (0.6, 0.2, 0.2)) -> Dataset:
    """One type, three relations and their inverses; the last node has no edge; these shares of the edges are links."""
    rng = np.random.default_rng(0)
    ends = rng.integers(num_nodes - 1, size=(2, pairs))
    relations = [Edges(Relation(0, name, 0), *ends[:, rng.random(pairs) < 0.4]) for name in ("is", "has", "likes")]
    relations += [edges.inverse() for edges in relations]
    nothing = [np.zeros((num_nodes, 0), np.float32)]
    labels, split = np.zeros(num_nodes, np.int64), np.ones(num_nodes, np.uint8)
    return draw_links(typed_dataset("asked", 2, ["thing"], nothing, relations, 0, labels, split), shares)


def small_typed_graph(kind: str, seed: int = 0) -> Dataset:
    """Typed graphs at the edge of what there is, 60 papers (``type.s``), all with features but where said:

    ``sink``: no relation ends in the labelled type. ``features``: every type has features of one width. ``widths``: authors
    have fewer. ``one_type``: several relations between nodes of one type. ``names``: types called like attributes, without
    features.
    """
    rng = np.random.default_rng(seed)
    names = {"names": ["values", "type_s", "type.s"], "one_type": ["paper"]}.get(kind, ["author", "paper"])
    counts = {name: 60 if name == names[-1] else 25 for name in names}
    widths = (
        dict.fromkeys(names, NUM_FEATURES)
        | ({"author": 3} if kind == "widths" else {})
        | (dict.fromkeys(names[:2], 0) if kind == "names" else {})
    )
    last = len(names) - 1
    ends = {"sink": [(1, 0), (0, 0)], "one_type": [(0, 0), (0, 0)], "names": [(0, 2), (1, 2), (2, 0), (2, 1)]}
    relations = []
    for number, (source, destination) in enumerate(ends.get(kind, [(0, 1), (1, 0), (1, 1)])):
        a, b = counts[names[source]], counts[names[destination]]
        pairs = rng.integers(a, size=120), rng.integers(b, size=120)
        relations.append(Edges(Relation(source, f"r{number}", destination), *pairs))
    features = [rng.standard_normal((counts[name], widths[name])).astype(np.float32) for name in names]
    labels, split = rng.integers(NUM_CLASSES, size=60), rng.choice([1, 1, 2, 3], size=60).astype(np.uint8)
    return typed_dataset(kind, NUM_CLASSES, names, features, relations, last, labels, split)


def with_task(dataset: Dataset, task: Task, outputs: int = 4, seed: int = 0) -> Dataset:
    """The same graph with labels of another task than classes, made from features and classes where there are any.

    A fifth of the entries is not known, but a node of the split has one; of the last of several labels only true ones occur.
    """
    rng = np.random.default_rng(seed)
    classes = np.asarray(dataset.labels)
    n, nodes = len(classes), np.flatnonzero(classes >= 0)
    known = rng.random((n, outputs)) < 0.8
    known[np.arange(n), rng.integers(outputs, size=n)] |= np.asarray(dataset.split) > 0
    known[np.setdiff1d(np.arange(n), nodes)] = False
    scores = (classes[:, None] * (1 + np.arange(outputs)) % NUM_CLASSES) / 2.0 - 0.7 + rng.normal(0, 0.3, (n, outputs))
    if task == "regression":
        labels = np.where(known, scores, np.nan).astype(np.float32)
    else:
        labels = np.where(known, scores > 0, -1).astype(np.int8)
        labels[:, -1] = np.where(known[:, -1], 1, -1)
    return dataclasses.replace(dataset, name=task, num_classes=outputs, labels=labels)


def constant_graph(columns: int = NUM_FEATURES, num_nodes: int = 300) -> Dataset:
    """A graph without isolated nodes whose first ``columns`` feature columns are ones, what people give featureless graphs."""
    plain = nasty_graph(num_nodes, seed=4)
    nodes = np.arange(num_nodes)
    source = np.concatenate([plain.indices, nodes])
    destination = np.concatenate([np.repeat(nodes, np.diff(plain.indptr)), (nodes + 1) % num_nodes])
    indptr, indices = by_destination(source, destination, num_nodes)
    features = np.array(plain.features[0])
    features[:, :columns] = 1
    labels, split = np.asarray(plain.labels), np.asarray(plain.split)
    return Dataset.homogeneous("constant", NUM_CLASSES, features, labels, split, indptr, indices)


def assign(dataset: Dataset, partitioner: str, world: int) -> np.ndarray:
    """An assignment by a real partitioner, a name or a target ``FILE.py:NAME``, or a forced one; ``given`` reads a file of
    random workers.

    ``empty``: the last part owns nothing. ``apart``: the isolated nodes form the last part, so that it exchanges no row
    with any other, and the rest is random. ``by_type``: the parts take the node types in turn, so that most parts have no
    rows of most types, and no labels.
    """
    if partitioner == "by_type":
        return (dataset.schema.types_of(np.arange(dataset.num_nodes)) % world).astype(np.int32)
    if partitioner == "empty":
        return (np.arange(dataset.num_nodes) % max(world - 1, 1)).astype(np.int32)
    if partitioner == "apart":
        assignment = np.random.default_rng(1).integers(max(world - 1, 1), size=dataset.num_nodes).astype(np.int32)
        assignment[dataset.num_nodes * 9 // 10 :] = world - 1
        return assignment
    arrays = (dataset.indptr, dataset.indices, dataset.relation, dataset.columns.weight, dataset.split)
    content = hashlib.sha1(repr((dataset.schema, partitioner, world)).encode())
    for array in arrays:
        content.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    key = content.digest()
    if key not in _ASSIGNED:  # else each rank would cut, and a partitioner need not answer twice alike
        _ASSIGNED[key] = _assign(dataset, partitioner, world)
    return _ASSIGNED[key].copy()


_ASSIGNED: dict[bytes, np.ndarray] = {}


def _assign(dataset: Dataset, partitioner: str, world: int) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "given.npy") if partitioner == "given" else None
        if file is not None:
            np.save(file, np.random.default_rng(2).permutation(np.arange(dataset.num_nodes) % world))
        config = PartitionerConfig(name="given" if file else "one", seed=0, order="original", file=file, threads=1)
        assignment = resolve("partitioner", PARTITIONERS, partitioner)(dataset, world, config)
    return np.asarray(assignment)


def with_edge_features(dataset: Dataset, columns: int = 3, seed: int = 0) -> Dataset:
    """The same graph whose edges have features, beside what they carry."""
    features = np.random.default_rng(seed).standard_normal((dataset.num_edges, columns)).astype(np.float32)
    return dataclasses.replace(dataset, columns=dataset.columns.put(ATTR, features))


def with_weights(dataset: Dataset, seed: int = 0, *, lowest: float = 0.25) -> Dataset:
    """The same graph with edge weights from ``lowest`` to 2, a tenth of them 0."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(lowest, 2.0, dataset.num_edges).astype(np.float32)
    weights[rng.random(dataset.num_edges) < 0.1] = 0
    return dataclasses.replace(dataset, columns=EdgeColumns.of({"weight": weights}))
