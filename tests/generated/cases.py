"""Random cases: a small graph with what goes wrong, a task, a model or a module of PyG's, a view and a way to compute it.

Every number is drawn by hypothesis, so that a case that fails shrinks to few nodes, edges, layers and workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sargnn.config.groups import DECODERS, EDGE_DECODERS, BatchesConfig, EdgesConfig, LabelsConfig, LinksConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.edge_columns import NO_COLUMNS
from sargnn.graph.schema import SPLITS, Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.partition import PARTITIONERS
from sargnn.sources.given_pairs import EdgeLabels, label_edges
from sargnn.sources.links import draw_links
from tests.graphs import NUM_CLASSES, NUM_FEATURES, with_weights
from tests.parity import cases

PLAIN = [name for name in cases.NAMES if name not in ("rgcn", "rgat")]
TYPED = ["rgcn", "rgat"]
AGGREGATORS = ["mean", "sum", "max", "pool"]
MODULES = [f"module {kind}" for kind in ("sage", "sage_max", "gcn", "gat", "gatv2", "gin", "graph", "transformer", "edge")]
_STACKS = Path(cases.__file__).parent / "toys" / "pyg_stacks.py"


@dataclass(frozen=True)
class Graph:
    """What a graph is made from.

    Attributes:
        seed: of all that is random in it.
        counts: nodes of each type; one type is homogeneous.
        edges: of each relation; every type has one to itself, and one to the next type. Some have none.
        isolated: how many of the last nodes of each type have no edges.
        hubs: in how many nodes half of the edges begin.
        repeats, loops: edges that are there twice, and self-loops.
        weighted: edges have weights, some of them 0.
    """

    seed: int
    counts: tuple[int, ...]
    edges: tuple[int, ...]
    isolated: int
    hubs: int
    repeats: int
    loops: int
    weighted: bool

    def make(self) -> Dataset:
        rng = np.random.default_rng(self.seed)
        if len(self.counts) == 1:
            made = self._homogeneous(rng)
        else:
            made = self._typed(rng)
        return with_weights(made, self.seed) if self.weighted else made

    def _ends(self, rng: np.random.Generator, source: int, destination: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        live = [max(1, self.counts[kind] - self.isolated) for kind in (source, destination)]
        sources, destinations = rng.integers(live[0], size=number), rng.integers(live[1], size=number)
        if self.hubs:
            sources[: number // 2] %= min(self.hubs, live[0])
        again = rng.integers(number, size=min(self.repeats, number)) if number else np.zeros(0, np.int64)
        loops = rng.integers(live[0], size=self.loops if source == destination and number else 0)
        return np.concatenate([sources, sources[again], loops]), np.concatenate([destinations, destinations[again], loops])

    def _rows(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels, and a split with at least one node for training."""
        split = rng.choice([0, *SPLITS.values()], p=[0.1, 0.5, 0.2, 0.2], size=count).astype(np.uint8)
        split[rng.integers(count)] = SPLITS["train"]
        return rng.integers(NUM_CLASSES, size=count).astype(np.int64), split

    def _homogeneous(self, rng: np.random.Generator) -> Dataset:
        (count,) = self.counts
        indptr, indices = by_destination(*self._ends(rng, 0, 0, self.edges[0]), count)
        features = rng.standard_normal((count, NUM_FEATURES)).astype(np.float32)
        return Dataset.homogeneous("generated", NUM_CLASSES, features, *self._rows(rng, count), indptr, indices)

    def _typed(self, rng: np.random.Generator) -> Dataset:
        kinds = len(self.counts)
        relations = []
        for number, edges in enumerate(self.edges):
            source = number % kinds
            destination = source if number < kinds else (source + 1) % kinds
            ends = self._ends(rng, source, destination, edges)
            relations.append(Edges(Relation(source, f"r{number}", destination), *ends))
        widths = [0 if kind == 1 else NUM_FEATURES for kind in range(kinds)]
        features = [rng.standard_normal((n, w)).astype(np.float32) for n, w in zip(self.counts, widths, strict=True)]
        names = [f"type{kind}" for kind in range(kinds)]
        return typed_dataset("generated", NUM_CLASSES, names, features, relations, 0, *self._rows(rng, self.counts[0]))


@dataclass(frozen=True)
class Case:
    """A first step.

    Attributes:
        graph: what it is made on.
        model: a key of the models' cases, or one of ``MODULES``; settings: what is changed of it.
        view: choices of ``cases.run_config`` that change what is computed.
        way: choices that change nothing but how: mode, kernel, workers, ...
        near: rows of other ranks are read where they lie.
        task: what is predicted; pairs: its settings, where these are pairs.
    """

    graph: Graph
    model: str
    settings: dict[str, Any]
    view: dict[str, Any]
    way: dict[str, Any]
    near: bool = False
    task: str = "nodes"
    pairs: dict[str, Any] = field(default_factory=dict)

    @property
    def has_oracle(self) -> bool:
        """Dense matrices compute it, too; else one worker does."""
        return self.task == "nodes" and self.model not in MODULES

    def data(self) -> Dataset:
        """Its graph, with pairs where these are predicted."""
        graph = self.graph.make()
        if self.task == "links":
            return draw_links(graph, [0.6, 0.15, 0.15], seed=self.graph.seed, messages=self.graph.loops % 2 == 0)
        if self.task == "edges":
            return label_edges(graph, list(self._labels(graph)), messages=self.graph.loops % 2 == 0)
        return graph

    def _labels(self, graph: Dataset) -> Iterator[EdgeLabels]:
        """Of the edges of each relation, some of them unknown."""
        rng = np.random.default_rng(self.graph.seed)
        destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        of = np.zeros(graph.num_edges, np.int64) if graph.relation is None else np.asarray(graph.relation)
        for r, relation in enumerate(graph.schema.relations):
            edges = rng.permutation(np.flatnonzero(of == r))
            sources = np.asarray(graph.indices, np.int64)[edges] - graph.schema.offsets[relation.source]
            ends = Edges(relation, sources, destinations[edges] - graph.schema.offsets[relation.destination], NO_COLUMNS)
            labels = rng.integers(-1, NUM_CLASSES, len(edges))
            yield EdgeLabels(ends, r, labels, np.where(labels >= 0, rng.integers(0, 4, len(edges)), 0).astype(np.uint8))

    def config(self, *, alone: bool = False) -> RunConfig | None:
        """Of its run, or of one worker that computes it in the plainest way; None where that is refused."""
        module = self.model in MODULES
        way = {"mode": "sar", "kernel": "auto" if module else "reference"} if alone else self.way
        try:
            if module:
                kind = {"kind": self.model.removeprefix("module ")}
                model: Any = CustomSettings("custom", target=f"{_STACKS}:Stack", args=kind)
            else:
                model = cases.model_config(self.model, **self.settings)
            config = cases.run_config(model, **self.view, **way)
        except ConfigError:
            return None
        if self.task == "links":
            return dataclasses.replace(config, task="links", links=LinksConfig(**self.pairs))
        if self.task == "edges":
            return dataclasses.replace(config, task="edges", edges=EdgesConfig(**self.pairs))
        return config


def graphs(typed: bool) -> st.SearchStrategy[Graph]:
    """Small graphs."""
    count = st.integers(1, 60)
    types = st.integers(2, 3) if typed else st.just(1)

    def with_types(kinds: int) -> st.SearchStrategy[Graph]:
        relations = 2 * kinds if typed else 1
        return st.builds(
            Graph,
            seed=st.integers(0, 2**16),
            counts=st.tuples(*[count] * kinds),
            edges=st.tuples(*[st.one_of(st.just(0), st.integers(0, 200))] * relations),
            isolated=st.integers(0, 10),
            hubs=st.integers(0, 2),
            repeats=st.integers(0, 10),
            loops=st.integers(0, 5),
            weighted=st.booleans(),
        )

    return types.flatmap(with_types)


def links() -> st.SearchStrategy[dict[str, Any]]:
    """Settings of ``task=links``."""
    return st.fixed_dictionaries(
        {
            "decoder": st.sampled_from(DECODERS),
            "embedding_dim": st.just(6),
            "loss": st.sampled_from(["bce", "softmax", "margin"]),
            "negatives": st.integers(1, 4),
            "corrupt": st.sampled_from(["tail", "head", "both", "ends"]),
            "strict": st.booleans(),
        }
    )


@st.composite
def steps(draw: st.DrawFn) -> Case:
    """First steps of models."""
    typed = draw(st.integers(0, 3)) == 3
    task = draw(st.sampled_from(["nodes", "nodes", "nodes", "links", "edges"]))
    module = not typed and draw(st.integers(0, 5)) == 0
    model = draw(st.sampled_from(TYPED if typed else MODULES if module else PLAIN))
    layers = draw(st.integers(1, 3))
    norm = draw(st.sampled_from(["none", "batch", "layer"]))
    changes: dict[str, Any] = {
        "num_layers": layers,
        "steps": layers,
        "norm": norm,
        "dropout": draw(st.sampled_from([0.0, 0.4])),
        "residual": draw(st.booleans()),
        "aggregator": draw(st.sampled_from(AGGREGATORS)),
        "order": draw(st.sampled_from(["auto", "transform_first", "aggregate_first"])),
    }
    if model == "resgcn":
        changes.pop("residual")
    view: dict[str, Any] = {"seed": draw(st.integers(0, 9))}
    kind = draw(st.sampled_from(["full", "mfg", "micro-batches", "steps", "sampled"]))
    if kind == "mfg":
        view["mfg"] = True
    elif kind == "micro-batches" and norm != "batch":  # which is over a micro-batch's rows
        count, by = draw(st.integers(2, 4)), draw(st.sampled_from(["star", "reg", "random", "range"]))
        view["batches"] = BatchesConfig(count=count, by=by)
    elif kind in ("steps", "sampled"):
        fanouts = (
            draw(st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=layers, max_size=layers)) if kind == "sampled" else None
        )
        view["batches"] = BatchesConfig(steps=draw(st.integers(1, 3)))
        view["sample"] = SampleConfig(fanouts=fanouts, every="step")
    if task == "nodes" and draw(st.integers(0, 3)) == 0:
        view["labels"] = LabelsConfig("masked", 0.4, 0)
    mode, kernel = draw(st.sampled_from(cases.PAIRS))
    way: dict[str, Any] = {
        "mode": mode,
        "kernel": kernel,
        "world": draw(st.integers(1, 9)),
        "partitioner": draw(st.sampled_from([*sorted(set(PARTITIONERS) - {"given", "kaminpar"}), "empty", "apart", "by_type"])),
        "message_rows": draw(st.sampled_from([None, 1, 7, 23])),
        "prefetch_depth": draw(st.integers(0, 2)),
        "aggregate": draw(st.sampled_from(["post", "pre", "least", "fastest"])),
        "keep_layers": draw(st.sampled_from(["all", 1, 2])),
        "column_groups": draw(st.sampled_from([None, 2])),
        "precision": draw(st.sampled_from(["fp64", "fp64", "fp64", "fp32"])),
    }
    pairs: dict[str, Any] = {}
    if task == "links":
        pairs = draw(links())
    elif task == "edges":
        pairs = {"decoder": draw(st.sampled_from(EDGE_DECODERS)), "embedding_dim": 6}
    if model in MODULES:
        way["kernel"], settings = "auto", {}
    else:
        settings = cases.known(model, **changes)
    return Case(draw(graphs(typed)), model, settings, view, way, near=draw(st.booleans()), task=task, pairs=pairs)
