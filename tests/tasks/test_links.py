"""Links at full rank: a model's pairs among all nodes, and each node's best partners, against brute force on any world."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import DECODERS, BatchesConfig, LinksConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.links import draw_links
from sargnn.tasks.links import LinkTask
from tests.graphs import knowledge_graph, nasty_graph
from tests.parity import cases
from tests.pool import pool

WHOLE = {"directed": nasty_graph(), "typed": cases.graph_for("rgcn"), "triples": knowledge_graph()}
WHOLE["300 relations"] = knowledge_graph(relations=300, share=0.02)
GRAPHS = {name: draw_links(graph, [0.5, 0.2, 0.2]) for name, graph in WHOLE.items()}
K = 4


def measured(group: Group, config: RunConfig, graph: Dataset) -> dict[str, Any]:
    """All that an untrained model's evaluation gives, its outputs, and best partners of the first relation that has links."""
    trainer = cases.trainer_of(group, config, graph)
    task = trainer.task
    assert isinstance(task, LinkTask)
    outputs = trainer.evaluator.predictions().round(decimals=1)  # many ties
    with torch.no_grad():
        task.metrics(outputs, task.targets(None))
        partners, scores = task.partners(outputs, K, 0)
    return {
        "metrics": {split: dict(values) for split, values in task.measured.items()},
        "outputs": outputs.numpy(),
        "ids": trainer.ids.numpy(),
        "partners": partners.numpy(),
        "scores": scores.numpy(),
    }


@pytest.mark.parametrize(
    ("graph", "ranked"),
    [*itertools.product(["directed", "typed", "triples"], ["both", "tail", "head"]), ("300 relations", "both")],
)
def test_full_rank(graph: str, ranked: Any) -> None:
    dataset = GRAPHS[graph]
    pairs, schema = dataset.pairs, dataset.schema
    assert pairs is not None
    links = LinksConfig("dot", 6, rank=ranked)
    model = cases.model_config("sage" if graph == "directed" else "rgcn")
    config = dataclasses.replace(cases.run_config(model), task="links", links=links, metric="hits@7")
    alone = measured(Group.single(), config, dataset)
    rows = np.empty_like(alone["outputs"])
    rows[alone["ids"]] = alone["outputs"]
    scores = (rows @ rows.T).astype(np.float32)
    whole, known = WHOLE[graph], np.zeros((len(schema.relations), *scores.shape), bool)
    into = np.repeat(np.arange(whole.num_nodes), np.diff(whole.indptr))
    known[0 if whole.relation is None else whole.relation, whole.indices, into] = True
    known[:, np.arange(whole.num_nodes), np.arange(whole.num_nodes)] = False
    if graph == "triples":  # what other relations link stays a candidate
        assert (known.sum(0) > 1).sum() > 100
    for split in ("valid", "test"):
        ranks = []
        for which in np.flatnonzero(pairs.split == SPLITS[split]):
            head, tail = pairs.heads[which], pairs.tails[which]
            number = 0 if pairs.relation is None else pairs.relation[which]
            relation = schema.relations[number]
            for end, kind, own, left_out, true in (
                ("tail", relation.destination, scores[head], known[number, head], tail),
                ("head", relation.source, scores[:, tail], known[number, :, tail], head),
            ):
                if ranked in ("both", end):
                    others = np.arange(schema.offsets[kind], schema.offsets[kind + 1])
                    others = others[~left_out[others] & (others != true)]
                    ranks.append(1 + (own[others] > own[true]).sum() + (own[others] == own[true]).sum() / 2)
        got = alone["metrics"][split]
        assert got["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-12)
        assert got["mean_rank"] == pytest.approx(np.mean(ranks), rel=1e-12)
        assert all(got[f"hits@{k}"] == np.mean(np.array(ranks) <= k) for k in (1, 7, 10))
        assert any(rank % 1 for rank in ranks) or graph == "300 relations"  # there are ties
    for world, partitioner in ((2, "empty"), (4, "random")):
        other = cases.with_world(
            dataclasses.replace(config, partitioner=cases.run_config(model, partitioner=partitioner).partitioner), world
        )
        answers = pool(world)(measured, other, dataset)
        for answer in answers:
            for split, values in alone["metrics"].items():
                assert answer["metrics"][split] == pytest.approx(values, rel=1e-12)
        ids = np.concatenate([answer["ids"] for answer in answers])
        partners = np.concatenate([answer["partners"] for answer in answers])
        first, last = (schema.offsets[schema.relations[0].source + k] for k in (0, 1))
        own = np.sort(ids[(ids >= first) & (ids < last)])
        order = np.argsort(ids[(ids >= first) & (ids < last)])
        wanted = alone["ids"][(alone["ids"] >= first) & (alone["ids"] < last)]
        assert np.array_equal(partners[order], alone["partners"][np.argsort(wanted)]) and len(own)


def test_relations_of_rows_alone_do_not_begin_alike() -> None:
    for model, alike in (("none", False), ("rgcn", True)):
        config = dataclasses.replace(
            cases.run_config(cases.model_config(model)), task="links", links=LinksConfig("distmult", 6)
        )
        task = cases.trainer_of(Group.single(), config, GRAPHS["triples"]).task
        assert isinstance(task, LinkTask)
        assert bool((task.decoder.get_parameter("weight") >= 0.5).all()) == alike


def first_losses(group: Group, config: RunConfig, graph: Dataset) -> tuple[float, list[float], float]:
    """The temperature, losses of two epochs, and a validation metric."""
    trainer = cases.trainer_of(group, config, graph)
    assert isinstance(trainer.task, LinkTask)
    losses = [trainer.loop.train_epoch(epoch).loss for epoch in range(2)]
    scale = float(dict(trainer.model.named_buffers())["task.temperature_of_sargnn"])
    scores = trainer.evaluator.evaluate().scores
    assert scores["valid"] is not None
    return scale, losses, scores["valid"]


LOSSES = [("bce", 1), ("bce", 4), ("softmax", 5)]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("model", ["sage", "gat", "gin", "gcn", "rgcn"])
def test_the_first_loss_is_that_of_a_guess(model: str, decoder: str) -> None:
    """Whatever the model and the decoder, where nothing is said of a temperature."""
    graph = GRAPHS["typed" if model == "rgcn" else "directed"]
    loss, negatives = LOSSES[DECODERS.index(decoder) % len(LOSSES)]
    links = LinksConfig(decoder, 6, temperature=None, loss=loss, negatives=negatives)  # type: ignore[arg-type]
    config = dataclasses.replace(cases.run_config(cases.model_config(model)), task="links", links=links)
    _, (first, _), _ = first_losses(Group.single(), config, graph)
    guess = np.log(2) if loss == "bce" else np.log(1 + negatives)
    assert first == pytest.approx(guess, rel=0.1)


@pytest.mark.parametrize("how", ["full", "micro", "steps", "sampled"])
def test_a_chosen_temperature_is_the_same_on_any_workers(how: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "full": {},
        "micro": {"batches": BatchesConfig(count=3)},
        "steps": {"batches": BatchesConfig(steps=2)},
        "sampled": {"sample": SampleConfig(fanouts=[3, 2, 2])},
    }
    model = cases.model_config("gcn", norm="none")
    base = cases.run_config(model, partitioner="random")
    links = LinksConfig("complex", 6, temperature=None)
    config = dataclasses.replace(base, task="links", links=links, **ways[how])
    alone = first_losses(Group.single(), config, GRAPHS["directed"])
    for answer in pool(3)(first_losses, cases.with_world(config, 3), GRAPHS["directed"]):
        assert answer[0] == pytest.approx(alone[0], rel=1e-10) and answer[1] == pytest.approx(alone[1], rel=1e-8)
        assert answer[2] == pytest.approx(alone[2], rel=1e-12)
    if how == "micro":
        whole = first_losses(Group.single(), dataclasses.replace(base, task="links", links=links), GRAPHS["directed"])
        assert alone[0] == pytest.approx(whole[0], rel=1e-10) and alone[1] == pytest.approx(whole[1], rel=1e-8)
