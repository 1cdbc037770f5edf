"""Models that are asked: losses, gradients and ranks against the same module in plain PyTorch and PyG, on any workers."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LinksConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.queries import Queries
from sargnn.graph.schema import SPLITS
from sargnn.resolve import resolve
from sargnn.tasks.metrics import gather_rows
from sargnn.tasks.queries import QueryTargets, QueryTask
from sargnn.training.queries import QuerySteps
from tests.graphs import asked_graph
from tests.parity import cases
from tests.parity.covering import only
from tests.pool import pool

FILE = Path(__file__).parents[2] / "examples" / "layers" / "nbfnet.py"
ARGS = {"hidden": 5, "num_layers": 3}


GRAPH = asked_graph()


def asking(links: LinksConfig, **choices: Any) -> RunConfig:
    settings = CustomSettings("custom", target=f"{FILE}:NBFNet", args=ARGS)
    return dataclasses.replace(cases.run_config(settings, **choices), task="queries", links=links, metric="mrr")


CASES = {
    "all": LinksConfig(loss="softmax", negatives=0, queries=20),
    "tails": LinksConfig(loss="softmax", negatives=0, queries=15, rank="tail"),
    "heads": LinksConfig(loss="softmax", negatives=0, queries=15, rank="head"),
    "bce": LinksConfig(loss="bce", negatives=4, strict=True, queries=20),
    "softmax": LinksConfig(loss="softmax", negatives=4, queries=20),
    "margin": LinksConfig(loss="margin", negatives=3, strict=True, queries=20),
}


def first_step(group: Group, config: RunConfig, graph: Dataset) -> dict[str, Any]:
    """The first step's queries, loss and gradients, and what an evaluation of the untrained model gives."""
    trainer = cases.trainer_of(group, config, graph)
    task, steps = trainer.task, trainer.loop.steps
    assert isinstance(task, QueryTask) and isinstance(steps, QuerySteps)
    steps.begin(0)
    shown = []
    for view in steps.views(0):
        targets = view.targets
        assert isinstance(targets, QueryTargets) and targets.queries is not None
        rows, of = torch.nonzero(targets.queries.is_head, as_tuple=True)
        heads = gather_rows(group, torch.stack([of, trainer.ids[rows]], 1))
        answers = gather_rows(group, torch.stack([targets.answers.queries, trainer.ids[targets.answers.rows]], 1))
        negatives = None
        if targets.negatives is not None:
            own = targets.negatives
            negatives = gather_rows(group, torch.stack([own.queries, trainer.ids[own.rows]], 1))
        counts = None if targets.counts is None else targets.counts.numpy()
        shown.append((heads.numpy(), targets.queries.relations.numpy(), answers.numpy(), negatives, counts))
    loss = trainer.loop.gradients(0)
    gradients = {name: p.grad.numpy() for name, p in trainer.model.named_parameters() if p.grad is not None}
    every = [np.flatnonzero(steps._run_of == run) for run in range(steps.count * steps.batches)]
    asked = [np.stack(task._ends(task._training[own]), 1) for own in every]
    evaluation = trainer.evaluator.evaluate()
    return {
        "shown": shown,
        "loss": loss.value,
        "labels": loss.labels,
        "gradients": gradients,
        "asked": gather_rows(group, torch.from_numpy(np.concatenate(asked))).numpy(),
        "scores": evaluation.scores,
        "measured": {split: dict(values) for split, values in task.measured.items()},
    }


def plain_module(config: RunConfig) -> torch.nn.Module:
    torch.manual_seed(config.seed)
    make = resolve("model", {}, f"{FILE}:NBFNet")
    module: torch.nn.Module = make(num_relations=len(GRAPH.schema.relations), **ARGS).double()
    return module


def edges_without(links: set[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
    """The graph's edges but some, (head, relation, tail), and those of the inverse relation."""
    sources = np.asarray(GRAPH.indices).astype(np.int64)
    destinations = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    assert GRAPH.relation is not None
    gone = {link for h, r, t in links for link in ((h, r, t), (t, (r + 3) % 6, h))}
    ends = zip(sources.tolist(), np.asarray(GRAPH.relation).tolist(), destinations.tolist(), strict=True)
    keeps = np.array([edge not in gone for edge in ends])
    index = torch.from_numpy(np.stack([sources[keeps], destinations[keeps]]))
    return index, torch.from_numpy(np.asarray(GRAPH.relation)[keeps].astype(np.int64))


def links_of(*splits: str) -> set[tuple[int, int, int]]:
    """(head, relation, tail) of some splits, and the same by inverse relations."""
    pairs = GRAPH.pairs
    assert pairs is not None and pairs.relation is not None
    found = set()
    for head, tail, relation, split in zip(
        *map(np.ndarray.tolist, (pairs.heads, pairs.tails, pairs.relation, pairs.split)), strict=True
    ):
        if split in [SPLITS[name] for name in splits]:
            found |= {(head, relation, tail), (tail, relation + 3, head)}
    return found


def loss_of(config: RunConfig, module: torch.nn.Module, shown: Any, total: int) -> Tensor:
    """A step's loss, written out."""
    heads, relations, answers, negatives, counts = shown
    heads, answers = heads[np.argsort(heads[:, 0]), 1], answers[np.argsort(answers[:, 0]), 1]
    index, types = edges_without(set(zip(heads.tolist(), relations.tolist(), answers.tolist(), strict=True)))
    queries = Queries.of(torch.from_numpy(heads), torch.from_numpy(relations), GRAPH.num_nodes, torch.float64)
    scores = module(index, types, queries)
    known, loss, links = links_of("train"), torch.zeros((), dtype=torch.float64), config.links
    for q, (head, relation, answer) in enumerate(zip(heads.tolist(), relations.tolist(), answers.tolist(), strict=True)):
        own = scores[answer, q]
        if not links.negatives:
            others = [c for c in range(GRAPH.num_nodes) if c == answer or (head, relation, c) not in known]
            loss = loss + scores[others, q].logsumexp(0) - own
            continue
        k = links.negatives
        chosen = dict(negatives.tolist())
        others = [chosen[q * k + i] for i in range(k) if counts[q, i]]
        if links.strict:
            assert all((head, relation, c) not in known and c != head for c in others)
        s = scores[others, q]
        if links.loss == "bce":
            loss = loss + (torch.nn.functional.softplus(-own) + torch.nn.functional.softplus(s).sum()) / (1 + k)
        elif links.loss == "margin":
            loss = loss + (links.margin - own + s).clamp(min=0).sum() / k
        else:
            loss = loss + torch.cat([own[None], s]).logsumexp(0) - own
    return loss / total


def ranks_of(config: RunConfig, split: str, among: dict[tuple[int, int, int], list[int]] | None = None) -> list[float]:
    """Of the untrained module, written out. ``among``: of each query and its answer the candidates that are given."""
    module, every, known = plain_module(config), sorted(links_of(split)), set[tuple[int, int, int]]()
    pairs = GRAPH.pairs
    assert pairs is not None and pairs.known.relation is not None
    of_known = np.repeat(np.arange(GRAPH.num_nodes), np.diff(pairs.known.indptr))
    for head, relation, tail in zip(of_known.tolist(), pairs.known.relation.tolist(), pairs.known.tails.tolist(), strict=True):
        known |= {(head, relation, tail), (tail, relation + 3, head)}
    every = [q for q in every if config.links.rank == "both" or (q[1] < 3) == (config.links.rank == "tail")]
    heads, relations = (torch.tensor([q[place] for q in every]) for place in (0, 1))
    with torch.no_grad():
        scores = module(*edges_without(set()), Queries.of(heads, relations, GRAPH.num_nodes, torch.float64))
    ranks = []
    for q, (head, relation, answer) in enumerate(every):
        others = [c for c in range(GRAPH.num_nodes) if c != answer and (head, relation, c) not in known]
        if among is not None:
            others = among[head, relation, answer]
        own = scores[answer, q]
        ranks.append(float(1 + (scores[others, q] > own).sum() + (scores[others, q] == own).sum() / 2))
    return ranks


@cache
def on_one_worker(name: str) -> dict[str, Any]:
    return first_step(Group.single(), asking(CASES[name]), GRAPH)


FIRST = [("all", 3), ("bce", 3), ("margin", 1)]
REST = [(name, world) for world in (1, 3) for name in CASES if (name, world) not in FIRST]


@pytest.mark.parametrize("case", only(FIRST, FIRST + REST))
def test_a_step_is_that_of_plain_pytorch(case: tuple[str, int]) -> None:
    name, world = case
    config = asking(CASES[name], world=world)
    found = [on_one_worker(name)] if world == 1 else pool(world)(first_step, config, GRAPH)
    module = plain_module(config)
    (shown,) = found[0]["shown"]
    loss = loss_of(config, module, shown, found[0]["labels"])
    loss.backward()
    assert found[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
    for key, gradient in found[0]["gradients"].items():
        own = dict(module.named_parameters())[key.removeprefix("module.")].grad
        assert own is not None
        np.testing.assert_allclose(gradient, own.numpy(), rtol=1e-10, atol=1e-12, err_msg=key)
    assert len(found[0]["gradients"]) == len(dict(module.named_parameters()))
    every = {tuple(pair) for pair in found[0]["asked"].tolist()}
    assert every == {(h, t, r) for h, r, t in links_of("train") if r < 3}
    for split in ("valid", "test"):
        ranks = np.array(ranks_of(config, split))
        assert found[0]["measured"][split]["mrr"] == pytest.approx(float(np.mean(1 / ranks)), rel=1e-10)
        assert found[0]["measured"][split]["mean_rank"] == pytest.approx(float(ranks.mean()), rel=1e-10)


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_among_candidates_that_are_given(world: int) -> None:
    """To each pair of the test split its own, of heads fewer than of tails; to those of the validation split none."""
    pairs, rng = GRAPH.pairs, np.random.default_rng(0)
    assert pairs is not None and pairs.relation is not None
    which = np.flatnonzero(np.asarray(pairs.split) == SPLITS["test"])
    tails, heads = (rng.integers(GRAPH.num_nodes, size=(len(which), count)) for count in (7, 4))
    among: dict[tuple[int, int, int], list[int]] = {}
    ends = zip(*(np.asarray(column)[which].tolist() for column in (pairs.heads, pairs.relation, pairs.tails)), strict=True)
    for (head, relation, tail), others, other_heads in zip(ends, tails.tolist(), heads.tolist(), strict=True):
        among |= {(head, relation, tail): others, (tail, relation + 3, head): other_heads}
    given = dataclasses.replace(pairs, candidates={"test": tails}, head_candidates={"test": heads})
    graph, config = dataclasses.replace(GRAPH, pairs=given), asking(CASES["all"], world=world)
    QueryTask.check(config, graph)
    found = first_step(Group.single(), config, graph) if world == 1 else pool(world)(first_step, config, graph)[0]
    for split, candidates in (("valid", None), ("test", among)):
        ranks = np.array(ranks_of(config, split, candidates))
        assert found["measured"][split]["mrr"] == pytest.approx(float(np.mean(1 / ranks)), rel=1e-10)
        assert found["measured"][split]["mean_rank"] == pytest.approx(float(ranks.mean()), rel=1e-10)


def test_negatives_of_a_whole_split_are_refused() -> None:
    assert GRAPH.pairs is not None
    pairs = dataclasses.replace(GRAPH.pairs, negatives={"test": np.zeros((3, 2), np.int64)})
    with pytest.raises(ConfigError, match="negatives that all links of a split are measured against"):
        QueryTask.check(asking(CASES["all"]), dataclasses.replace(GRAPH, pairs=pairs))


def losses(group: Group, config: RunConfig, graph: Dataset) -> tuple[list[float], Any]:
    trainer = cases.trainer_of(group, config, graph)
    history = trainer.run()
    return history.losses, history.scores


MODES = [(mode, world) for world in (3, 2) for mode in ("sar", "domain_parallel", "no_remat", "one_shot")]


@pytest.mark.parametrize("case", only(MODES[:2], MODES))
def test_epochs_are_those_of_one_worker(case: tuple[str, int]) -> None:
    mode, world = case
    alone, _ = losses(Group.single(), asking(CASES["all"], epochs=2), GRAPH)
    several = pool(world)(losses, asking(CASES["all"], epochs=2, mode=mode, world=world), GRAPH)
    assert several[0][0] == pytest.approx(alone, rel=1e-8)


@pytest.mark.parametrize("name", ["all", "softmax"])
def test_micro_batches_add_up(name: str) -> None:
    """To the same step: each leaves the edges of all queries out."""
    config = asking(CASES[name], batches=BatchesConfig(count=3))
    found, whole = first_step(Group.single(), config, GRAPH), on_one_worker(name)
    counts = [len(relations) for _, relations, *_ in found["shown"]]
    assert len(counts) == 3 and max(counts) - min(counts) <= 2 and sum(counts) == whole["labels"]
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    for key, gradient in whole["gradients"].items():
        np.testing.assert_allclose(found["gradients"][key], gradient, rtol=1e-10, atol=1e-12, err_msg=key)
    assert found["measured"] == whole["measured"]


def test_more_micro_batches_than_links() -> None:
    with pytest.raises(ConfigError, match="more micro-batches than links"):
        QueryTask.check(asking(CASES["all"], batches=BatchesConfig(count=11)), GRAPH)


def test_ultra_has_the_losses_of_one_worker(tmp_path: Path) -> None:
    """Its vectors of relations are learned by all workers alike, and differ from query to query."""
    names, triples = ("is", "has", "likes"), tmp_path / "train.txt"
    lines = [f"{head:02d}\t{names[relation]}\t{tail:02d}" for head, relation, tail in sorted(links_of("train")) if relation < 3]
    triples.write_text("\n".join(lines) + "\n")
    model = CustomSettings(
        "custom", target=f"{FILE.parent / 'ultra.py'}:Ultra", args={"triples": str(triples), "hidden": 5, "num_layers": 2}
    )
    config = dataclasses.replace(asking(CASES["all"], epochs=1), model=model)
    alone, _ = losses(Group.single(), config, GRAPH)
    several = pool(2)(losses, dataclasses.replace(config, world=2), GRAPH)
    assert several[0][0] == pytest.approx(alone, rel=1e-8)
