"""Links: a first step's loss and gradients against dense matrices, curves, samples and steps on any number of workers."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import DECODERS, BatchesConfig, LinksConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.schema import SPLITS
from sargnn.rng import philox
from sargnn.sources.links import draw_links
from tests.graphs import knowledge_graph, nasty_graph
from tests.parity import cases, oracle
from tests.parity.cases import QUICK
from tests.parity.checks import assert_same_curve, check_step
from tests.parity.covering import spread
from tests.pool import pool

SHARES = [0.6, 0.15, 0.15]
SQUARES = f"{Path(__file__).parent}/toys/toy_decoder.py:Squares"


def both_ways(dataset: Dataset) -> Dataset:
    """The same graph with each edge in both directions."""
    n, ends = dataset.num_nodes, np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    sources = np.asarray(dataset.indices)
    indptr, indices = by_destination(np.concatenate([sources, ends]), np.concatenate([ends, sources]), n)
    return dataclasses.replace(dataset, indptr=indptr, indices=indices)


DIRECTED = draw_links(nasty_graph(), SHARES, seed=1)
assert DIRECTED.pairs is not None
WEIGHTS = np.linspace(0, 2, len(DIRECTED.pairs.heads), dtype=np.float32)
GRAPHS = {
    "directed": dataclasses.replace(DIRECTED, pairs=dataclasses.replace(DIRECTED.pairs, weights=WEIGHTS)),
    "both_ways": draw_links(both_ways(nasty_graph(120)), SHARES, messages=False),
    "typed": draw_links(cases.graph_for("rgcn"), SHARES),
    "300 relations": draw_links(knowledge_graph(relations=300, share=0.02), SHARES),
    "no features": dataclasses.replace(DIRECTED, features=(np.zeros((DIRECTED.num_nodes, 0), np.float32),)),
}
LOSSES = ["bce", "softmax", "margin"]


def links_config(model: str, links: LinksConfig, **choices: Any) -> RunConfig:
    config = cases.run_config(cases.model_config(model), **choices)
    return dataclasses.replace(config, task="links", links=links)


def draw_negatives(config: RunConfig, dataset: Dataset, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """[P, K] heads and tails, one after the other: the drawn numbers written out."""
    pairs, links, n, offsets = dataset.pairs, config.links, dataset.num_nodes, dataset.schema.offsets
    assert pairs is not None
    known = set()
    for head in range(n):
        run = slice(pairs.known.indptr[head], pairs.known.indptr[head + 1])
        of = np.zeros(len(pairs.known.tails[run])) if pairs.known.relation is None else pairs.known.relation[run]
        known |= {(head, int(number), int(tail)) for number, tail in zip(of, pairs.known.tails[run], strict=True)}
    heads, tails = np.empty((2, len(chosen), links.negatives), np.int64)
    numbers = np.zeros(len(chosen), np.int64) if pairs.relation is None else pairs.relation[chosen].astype(np.int64)
    head_ids, tail_ids = (
        torch.from_numpy((not links.shared) * ids[chosen].astype(np.int64))[:, None, None] for ids in (pairs.heads, pairs.tails)
    )
    counters = torch.arange(links.negatives)[:, None] + links.negatives * torch.arange(16)
    tags = torch.from_numpy(16 << 24 | numbers)[:, None, None]
    drawn_words = torch.stack(philox(head_ids, tail_ids, counters[None], tags, config.seed, step), -1).tolist()
    for row, which in enumerate(chosen):
        head, tail = int(pairs.heads[which]), int(pairs.tails[which])
        relation = dataset.schema.relations[numbers[row]]

        def node(share: float, kind: int) -> int:
            return offsets[kind] + int(share * (offsets[kind + 1] - offsets[kind]))

        for k in range(links.negatives):
            for words in drawn_words[row][k]:
                one, other = (((words[i] << 20) | (words[i + 1] >> 12)) / 2**52 for i in (0, 2))
                corrupt = links.corrupt
                if corrupt == "both":
                    corrupt = "head" if words[3] & 1 else "tail"
                if corrupt == "tail":
                    drawn = head, node(one, relation.destination)
                else:
                    drawn = node(one, relation.source), tail if corrupt == "head" else node(other, relation.destination)
                if not links.strict or ((drawn[0], numbers[row], drawn[1]) not in known and drawn[0] != drawn[1]):
                    break
            heads[row, k], tails[row, k] = drawn
    return heads, tails


def decoded(links: LinksConfig, params: dict[str, Tensor], heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
    """Scores by the formulas of ``sargnn.tasks.decoders``."""
    own = {name.removeprefix("task."): value for name, value in params.items() if name.startswith("task.")}
    if links.decoder == "cosine":
        lengths = heads.norm(dim=1) * tails.norm(dim=1)
        return torch.where(lengths > 0, (heads * tails).sum(1) / lengths.clamp(min=1e-300), 0.0)
    if links.decoder == "mlp":
        hidden = torch.relu((heads * tails) @ own["layers.0.weight"].T + own["layers.0.bias"])
        return (hidden @ own["layers.2.weight"].T + own["layers.2.bias"])[:, 0]
    if links.decoder == "bilinear":
        return torch.einsum("pi,pij,pj->p", heads, own["weight"][relation], tails)
    if links.decoder == "distmult":
        return (heads * own["weight"][relation] * tails).sum(1)
    if links.decoder == "complex":
        half = heads.shape[1] // 2
        complexes = (torch.complex(rows[..., :half], rows[..., half:]) for rows in (heads, own["weight"][relation], tails))
        head, weight, tail = complexes
        return (head * weight * tail.conj()).sum(1).real
    if links.decoder == "transe":
        return own["margin"] - (heads + own["weight"][relation] - tails).square().sum(1).sqrt()
    if links.decoder == "rotate":
        head, tail = (torch.complex(*rows.chunk(2, 1)) for rows in (heads, tails))
        turn = torch.polar(torch.ones_like(own["weight"]), own["weight"])[relation]
        return own["margin"] - (head * turn - tail).abs().sum(1)
    scores = (heads * tails).sum(1)
    return scores.square() if links.decoder == SQUARES else scores


def dense_step(config: RunConfig, dataset: Dataset, params: dict[str, Tensor]) -> dict[str, Any]:
    """The first step's loss and gradients."""
    pairs, links = dataset.pairs, config.links
    assert pairs is not None
    params = {name: value.double().requires_grad_() for name, value in params.items()}
    rows = oracle.forward(cases.definition_of(config.model), config, dataset, params, 0)
    chosen = np.flatnonzero(pairs.split == SPLITS["train"])
    heads, tails = draw_negatives(config, dataset, chosen, 0)

    relations = np.zeros(len(pairs.heads), np.int64) if pairs.relation is None else pairs.relation.astype(np.int64)
    of = torch.from_numpy(relations[chosen])

    def scores(first: np.ndarray, second: np.ndarray) -> Tensor:
        both = rows[torch.from_numpy(first)], rows[torch.from_numpy(second)]
        return decoded(links, params, *both, of.repeat_interleave(len(first) // len(of))) / (links.temperature or 1)

    positives = scores(pairs.heads[chosen], pairs.tails[chosen])
    negatives = scores(heads.ravel(), tails.ravel()).view(heads.shape)
    if links.loss == "bce":
        every = torch.cat([positives[:, None], negatives], 1)
        targets = torch.zeros_like(every)
        targets[:, 0] = 1
        losses = F.binary_cross_entropy_with_logits(every, targets, reduction="none").mean(1)
    elif links.loss == "softmax":
        first = torch.zeros(len(positives), dtype=torch.int64)
        losses = F.cross_entropy(torch.cat([positives[:, None], negatives], 1), first, reduction="none")
    else:
        losses = (links.margin - positives[:, None] + negatives).clamp(min=0).mean(1)
    if pairs.weights is not None:
        losses = losses * torch.from_numpy(pairs.weights[chosen])
    loss = losses.mean()
    loss.backward()
    grads = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in params.items()}
    return {"loss": loss.item(), "grads": grads}


@cache
def expected(model: str, links: LinksConfig, graph: str) -> dict[str, Any]:
    config = links_config(model, links)
    start = cases.initial_parameters(Group.single(), config, GRAPHS[graph])
    return dense_step(config, GRAPHS[graph], {name: torch.from_numpy(value) for name, value in start.items()})


@pytest.mark.parametrize(
    ("decoder", "loss", "graph", "corrupt", "strict", "mode", "kernel", "partitioner", "world"),
    spread(
        DECODERS,
        LOSSES,
        ["directed", "both_ways"],
        ["tail", "head", "both", "ends"],
        [False, True],
        QUICK,
        [("random", 1), ("metis", 2), ("empty", 2), ("random", 4), ("metis", 7)],
    ),
)
def test_first_step(
    decoder: str, loss: Any, graph: str, corrupt: Any, strict: bool, mode: str, kernel: str, partitioner: str, world: int
) -> None:
    """Every decoder, loss and way to draw, in every mode."""
    links = LinksConfig(decoder, 6, loss=loss, negatives=3, corrupt=corrupt, strict=strict, temperature=0.7)
    config = links_config("sage", links, mode=mode, kernel=kernel, partitioner=partitioner, world=world)
    check_step(expected("sage", links, graph), config, GRAPHS[graph])


@pytest.mark.parametrize(
    ("model", "graph", "decoder", "mode", "world"),
    [
        ("rgcn", "typed", "distmult", "sar", 2),
        ("rgat", "typed", "complex", "sar", 4),
        ("rgcn", "typed", "bilinear", "one_shot", 2),
        ("rgcn", "typed", "mlp", "domain_parallel", 2),
        ("rgcn", "typed", "dot", "no_remat", 7),
        ("gcn", "no features", "dot", "sar", 2),
        ("sage", "no features", "mlp", "no_remat", 4),
        ("gat", "no features", "cosine", "one_shot", 2),
        ("none", "typed", "transe", "sar", 4),
        ("none", "directed", "complex", "no_remat", 2),
        ("rgat", "typed", "rotate", "domain_parallel", 2),
        ("none", "300 relations", "complex", "sar", 3),
        ("rgcn", "300 relations", "transe", "sar", 3),
    ],
)
def test_types_and_learned_rows(model: str, graph: str, decoder: str, mode: str, world: int) -> None:
    """Ends of a relation's types, relations with numbers of their own, rows that are learned where there are no features."""
    links = LinksConfig(decoder, 6, loss="softmax", negatives=2, corrupt="both", strict=True)
    check_step(expected(model, links, graph), links_config(model, links, mode=mode, world=world), GRAPHS[graph])


@pytest.mark.parametrize("world", [1, 3])
def test_a_decoder_that_extends_dot_has_its_own_gradient(world: int) -> None:
    links = LinksConfig(SQUARES, 6, negatives=3, strict=True)
    check_step(expected("sage", links, "directed"), links_config("sage", links, world=world), GRAPHS["directed"])


def test_shared_negatives() -> None:
    links = LinksConfig("dot", 6, loss="softmax", negatives=5, shared=True)
    check_step(expected("sage", links, "directed"), links_config("sage", links, world=2), GRAPHS["directed"])


@pytest.mark.parametrize(
    ("name", "mode", "world", "partitioner", "steps", "count", "fanouts"),
    spread(
        [("gcn", "sar", 2, "metis"), ("gat", "no_remat", 4, "random"), ("sage", "sar", 7, "metis")],
        [(1, 1, None), (3, 1, None), (2, 2, None), (2, 1, [3, 3, 3]), (1, 2, [3, 3, -1])],
    ),
)
def test_curve(name: str, mode: str, world: int, partitioner: str, steps: int, count: int, fanouts: list[int] | None) -> None:
    """Steps, micro-batches and samples are the same on any number of workers, and so is what evaluations measure."""
    links = LinksConfig("mlp", 6, temperature=None, negatives=2, corrupt="both", strict=True)
    how = {"batches": BatchesConfig(steps=steps, count=count), "sample": SampleConfig(fanouts=fanouts)}
    alone = cases.curve(Group.single(), links_config(name, links, **how), GRAPHS["directed"])
    config = links_config(name, links, mode=mode, world=world, partitioner=partitioner, **how)
    for answer in pool(world)(cases.curve, config, GRAPHS["directed"]):
        assert_same_curve(answer["losses"], alone["losses"], "fp64")
        assert answer["scores"] == alone["scores"]


def test_steps_are_dealt_without_rest() -> None:
    """Each training pair is in one step."""
    links, graph = LinksConfig("dot", 6), GRAPHS["both_ways"]
    config = links_config("sage", links, batches=BatchesConfig(steps=4), sample=SampleConfig(fanouts=[3, 2, 4]))
    trainer = cases.trainer_of(Group.single(), config, graph)
    steps = trainer.loop.steps
    steps.begin(0)
    taken = np.concatenate([steps.views(step)[0].targets.batch.no_messages for step in range(4)])  # type: ignore[attr-defined]
    assert graph.pairs is not None
    training = graph.pairs.split == SPLITS["train"]
    wanted = np.stack([graph.pairs.heads[training], graph.pairs.tails[training]], 1)
    assert np.array_equal(taken[np.lexsort(taken.T)], wanted[np.lexsort(wanted.T)])


@pytest.mark.parametrize(("mode", "world"), [("sar", 3), pytest.param("one_shot", 4, marks=pytest.mark.long)])
def test_a_variational_autoencoder(mode: str, world: int) -> None:
    """Its rows are drawn by original ids: the same losses on any number of workers, and others in each epoch."""
    model = CustomSettings("custom", target=f"{Path(__file__).parent}/toys/pyg_stacks.py:Vgae")
    configs = [
        dataclasses.replace(config, task="links", links=LinksConfig("dot", 6, negatives=2))
        for config in (cases.run_config(model), cases.run_config(model, mode=mode, world=world))
    ]
    (alone,) = pool(1)(cases.curve, configs[0], GRAPHS["directed"])
    for answer in pool(world)(cases.curve, configs[1], GRAPHS["directed"]):
        assert_same_curve(answer["losses"], alone["losses"], "fp64")
    assert len(set(alone["losses"])) == cases.EPOCHS
