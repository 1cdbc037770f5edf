"""Labels of edges: a first step's loss and gradients against dense matrices, curves on any number of workers."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import EDGE_DECODERS, BatchesConfig, EdgesConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, EdgeColumns
from sargnn.graph.schema import SPLITS, has_label
from sargnn.graph.typed import Edges
from sargnn.sources.given_pairs import EdgeLabels, label_edges
from tests.graphs import nasty_graph
from tests.parity import cases, oracle
from tests.parity.cases import QUICK
from tests.parity.checks import assert_same_curve, check_step
from tests.parity.covering import spread
from tests.pool import pool

KINDS = ["classes", "multilabel", "regression"]
WIDTH, OUTPUTS = 3, 4


def labelled(dataset: Dataset, kind: str, relations: list[int], *, features: bool, messages: bool = True) -> Dataset:
    """A graph some of whose edges have labels, some of these in a split, and repeats among them; the edges shuffled."""
    rng = np.random.default_rng(3)
    destinations = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    of = np.zeros(dataset.num_edges, np.int64) if dataset.relation is None else np.asarray(dataset.relation).astype(np.int64)
    given = []
    for r in relations:
        relation, edges = dataset.schema.relations[r], rng.permutation(np.flatnonzero(of == r))
        edges = np.append(edges, edges[:3])
        sources = np.asarray(dataset.indices, np.int64)[edges] - dataset.schema.offsets[relation.source]
        ends = destinations[edges] - dataset.schema.offsets[relation.destination]
        columns = EdgeColumns.of({ATTR: rng.normal(size=(len(edges), WIDTH)).astype(np.float32)}) if features else NO_COLUMNS
        if kind == "classes":
            labels = rng.integers(-1, OUTPUTS, len(edges))
        elif kind == "multilabel":
            labels = rng.integers(-1, 2, (len(edges), OUTPUTS)).astype(np.int8)
        else:
            labels = rng.normal(size=(len(edges), OUTPUTS)).astype(np.float32)
            labels[rng.random(labels.shape) < 0.2] = np.nan
        split = np.where(has_label(labels), rng.integers(0, 4, len(edges)), 0).astype(np.uint8)
        given.append(EdgeLabels(Edges(relation, sources, ends, columns), r, labels, split))
    return label_edges(dataset, given, messages=messages)


@cache
def graph(name: str) -> Dataset:
    """``KIND``, with features; or that of one of the special cases."""
    if name == "typed":
        return labelled(cases.graph_for("rgcn"), "classes", [0, 1], features=True)
    if name == "no features":
        whole = nasty_graph()
        bare = dataclasses.replace(whole, features=(np.zeros((whole.num_nodes, 0), np.float32),))
        return labelled(bare, "classes", [0], features=False)
    if name == "no messages":
        return labelled(nasty_graph(), "multilabel", [0], features=True, messages=False)
    return labelled(nasty_graph(), name, [0], features=True)


def edges_config(model: str, edges: EdgesConfig, **choices: Any) -> RunConfig:
    config = cases.run_config(cases.model_config(model), **choices)
    return dataclasses.replace(config, task="edges", edges=edges)


def dense_step(config: RunConfig, dataset: Dataset, params: dict[str, Tensor]) -> dict[str, Any]:
    """The first step's loss and gradients."""
    pairs, edges = dataset.pairs, config.edges
    assert pairs is not None and pairs.labels is not None
    params = {name: value.double().requires_grad_() for name, value in params.items()}
    rows = oracle.forward(cases.definition_of(config.model), config, dataset, params, 0)
    chosen = np.flatnonzero(pairs.split == SPLITS["train"])
    heads, tails = rows[torch.from_numpy(pairs.heads[chosen])], rows[torch.from_numpy(pairs.tails[chosen])]
    own = {name.removeprefix("task."): value for name, value in params.items() if name.startswith("task.")}
    told_by = [heads * tails] if edges.decoder == "product" else [heads, tails]
    if pairs.features is not None and edges.features:
        told_by.append(torch.from_numpy(pairs.features[chosen]).double())
    relation = np.zeros(len(chosen), np.int64) if pairs.relation is None else pairs.relation[chosen].astype(np.int64)
    hidden = torch.relu(torch.cat(told_by, 1) @ own["first.weight"].T + own["bias"][torch.from_numpy(relation)])
    logits = hidden @ own["second.weight"].T + own["second.bias"]
    labels = torch.from_numpy(pairs.labels[chosen])
    if labels.dim() == 1:
        loss = F.cross_entropy(logits, labels, label_smoothing=config.optim.label_smoothing)
    elif labels.dtype == torch.int8:
        known = labels >= 0
        loss = F.binary_cross_entropy_with_logits(logits[known], labels[known].double())
    else:
        known = labels.isfinite()
        loss = (logits[known] - labels[known].double()).square().mean()
    loss.backward()
    grads = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in params.items()}
    return {"loss": loss.item(), "grads": grads}


@cache
def expected(model: str, edges: EdgesConfig, name: str) -> dict[str, Any]:
    config = edges_config(model, edges)
    start = cases.initial_parameters(Group.single(), config, graph(name))
    return dense_step(config, graph(name), {name: torch.from_numpy(value) for name, value in start.items()})


@pytest.mark.parametrize(
    ("decoder", "kind", "features", "mode", "kernel", "partitioner", "world"),
    spread(
        EDGE_DECODERS,
        KINDS,
        [True, False],
        QUICK,
        [("random", 1), ("metis", 2), ("empty", 2), ("random", 4), ("metis", 7)],
    ),
)
def test_first_step(decoder: str, kind: str, features: bool, mode: str, kernel: str, partitioner: str, world: int) -> None:
    """Every decoder and kind of labels, in every mode, with repeated edges and labels that are not known."""
    edges = EdgesConfig(decoder, 6, mlp_hidden=5, features=features)
    config = edges_config("sage", edges, mode=mode, kernel=kernel, partitioner=partitioner, world=world)
    check_step(expected("sage", edges, kind), config, graph(kind))


@pytest.mark.parametrize(
    ("model", "name", "decoder", "mode", "world"),
    [
        ("rgcn", "typed", "concat", "sar", 2),
        ("rgat", "typed", "product", "one_shot", 4),
        ("rgcn", "typed", "concat", "domain_parallel", 2),
        ("gcn", "no features", "concat", "sar", 2),
        ("gat", "no features", "product", "no_remat", 4),
        ("sage", "no messages", "concat", "sar", 2),
    ],
)
def test_types_and_learned_rows(model: str, name: str, decoder: str, mode: str, world: int) -> None:
    """Several relations with a bias each, rows that are learned, and labelled edges that are no messages."""
    edges = EdgesConfig(decoder, 6)
    check_step(expected(model, edges, name), edges_config(model, edges, mode=mode, world=world), graph(name))


@pytest.mark.parametrize(
    ("name", "kind", "mode", "world", "partitioner", "steps", "count", "fanouts"),
    spread(
        [
            ("gcn", "classes", "sar", 2, "metis"),
            ("gat", "multilabel", "no_remat", 4, "random"),
            ("sage", "regression", "sar", 7, "metis"),
        ],
        [(1, 1, None), (3, 1, None), (2, 2, None), (2, 1, [3, 3, 3]), (1, 2, [3, 3, -1])],
    ),
)
def test_curve(
    name: str, kind: str, mode: str, world: int, partitioner: str, steps: int, count: int, fanouts: list[int] | None
) -> None:
    """Steps, micro-batches and samples are the same on any number of workers, and so is what evaluations measure."""
    edges = EdgesConfig("concat", 6, divisor=None)
    how = {"batches": BatchesConfig(steps=steps, count=count), "sample": SampleConfig(fanouts=fanouts), "epochs": 6}
    alone = cases.curve(Group.single(), edges_config(name, edges, **how), graph(kind))
    config = edges_config(name, edges, mode=mode, world=world, partitioner=partitioner, **how)
    for answer in pool(world)(cases.curve, config, graph(kind)):
        assert_same_curve(answer["losses"], alone["losses"], "fp64")
        assert answer["scores"] == pytest.approx(alone["scores"], rel=1e-9)
