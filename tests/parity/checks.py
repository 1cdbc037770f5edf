"""First steps and curves of any number of workers against the dense oracle and against one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.report.groups import deviation
from tests.graphs import nasty_graph, small_typed_graph
from tests.parity import cases, oracle
from tests.parity.oracle import Definition
from tests.pool import pool

GRAPHS = {name: cases.graph_for(name) for name in [*cases.NAMES, *cases.WRITTEN_MODELS]}
GRAPHS |= {kind: small_typed_graph(kind) for kind in ("sink", "features", "one_type", "names")} | {
    "homogeneous": nasty_graph(),
    "few_nodes": nasty_graph(40),
}
"""What models are checked on; tests add graphs of their own."""
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4}
"""Of a first step's loss, outputs and gradients, relative."""


@cache
def expected(
    model: cases.Model, definition: Definition, seed: int, kind: str, labels: LabelsConfig, mfg: bool
) -> dict[str, Any]:  # fmt: skip
    """The first step by dense matrices."""
    config = cases.run_config(model, seed=seed, labels=labels, mfg=mfg)
    graph = GRAPHS[kind]
    start = cases.initial_parameters(Group.single(), config, graph)
    return oracle.first_step(definition, config, graph, {name: torch.from_numpy(value) for name, value in start.items()})


def check(model: cases.Model, kind: str = "", definition: Definition | None = None, **choices: Any) -> None:
    """A model's first step on every rank against the oracle.

    Args:
        kind: a key of ``GRAPHS``; the model's name if not given.
        definition: of a model without a case.
    """
    config = cases.run_config(model, **choices)
    graph = GRAPHS[kind or model.name]
    definition = definition or cases.definition_of(model)
    want = expected(model, definition, config.seed, kind or model.name, config.labels, config.mfg)
    ranks = pool(config.world)(cases.step, config, graph)
    tolerance = TOLERANCE[config.precision]
    # fp32 carries the rounding of some hundred sums; fp64's bound is the contract's.
    assert abs(ranks[0]["loss"] - want["loss"]) <= tolerance * want["loss"]
    ids = np.concatenate([answer["ids"] for answer in ranks])
    labelled = graph.schema.types_of(np.flatnonzero(graph.split)[:1])[0]
    every = np.arange(graph.schema.offsets[labelled], graph.schema.offsets[labelled + 1])
    assert np.array_equal(np.sort(ids), np.flatnonzero(np.asarray(graph.split) == SPLITS["train"]) if config.mfg else every)
    logits, right = np.concatenate([answer["logits"] for answer in ranks]), want["logits"].numpy()[ids]
    assert np.linalg.norm(logits - right) <= tolerance * np.linalg.norm(right)
    wanted_shards = {name: g for name, g in want["grads"].items() if name.startswith("inputs.embeddings.")}
    wanted = {name: g for name, g in want["grads"].items() if name not in wanted_shards}
    everything = np.sqrt(sum(float(g.square().sum()) for g in want["grads"].values()))
    for answer in ranks:
        assert answer["grads"].keys() == wanted.keys()
        for name, grad in wanted.items():
            bound = tolerance * max(float(grad.norm()), 1e-3 * everything)
            assert np.linalg.norm(answer["grads"][name] - grad.numpy()) <= bound, name
    for name, grad in wanted_shards.items():
        node_type = int(name.removeprefix("inputs.embeddings.")[:2])
        found = np.full(grad.shape, np.nan)
        for answer in ranks:
            own = answer["node_ids"][graph.schema.types_of(answer["node_ids"]) == node_type]
            found[own - graph.schema.offsets[node_type]] = answer["shards"][name]
        assert np.linalg.norm(found - grad.numpy()) <= tolerance * max(float(grad.norm()), 1e-3 * everything), name


def first_step(group: Group, config: RunConfig, dataset: Dataset, *, unwritten: bool = False) -> dict[str, Any]:
    """The loss of a first step, the gradients, and what batch norms have moved to; sharded rows by original id. ``unwritten``:
    memory that nobody has written to is NaN."""
    trainer = cases.trainer_of(group, config, dataset)
    trainer.model.train()
    torch.use_deterministic_algorithms(unwritten, warn_only=True)
    try:
        loss = trainer.loop.gradients().value
    finally:
        torch.use_deterministic_algorithms(False)
    grads = {name: one.grad.double().numpy() for name, one in trainer.model.named_parameters() if one.grad is not None}
    of_rows = {name: grads.pop(name) for name in list(grads) if name.startswith("inputs.embeddings.")}
    inputs = trainer.model.inputs
    ids = {name: trainer.ids[trainer.graph.rows_of_type(inputs.type_of(name))].numpy() for name in of_rows}
    buffers = {name: one.clone().numpy() for name, one in trainer.model.named_buffers()}
    return {
        "loss": loss,
        "grads": grads,
        "of_rows": of_rows,
        "ids": ids,
        "buffers": buffers,
        "batches": len(trainer.loop.steps.views(0)),
    }


def together(answers: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """All gradients: the sums, and those of sharded rows in the order of original ids."""
    found = dict(answers[0]["grads"])
    for name in answers[0]["of_rows"]:
        rows = np.concatenate([one["of_rows"][name] for one in answers])
        found[name] = rows[np.argsort(np.concatenate([one["ids"][name] for one in answers]))]
    return found


def check_step(want: dict[str, Any], config: RunConfig, graph: Any) -> None:
    """A first step of a configuration against the loss and gradients that are wanted, by the ``oracle``."""
    answers: list[dict[str, Any]] = pool(config.world)(first_step, config, graph)
    assert answers[0]["loss"] == pytest.approx(want["loss"], rel=1e-11)
    wanted = {key: one.numpy() for key, one in want["grads"].items()}
    got, all_of = together(answers), np.sqrt(sum(np.square(one).sum() for one in wanted.values()))
    assert got.keys() == wanted.keys()
    for key, one in wanted.items():
        assert np.linalg.norm(got[key] - one) <= 1e-10 * max(np.linalg.norm(one), 1e-3 * all_of), key


def assert_same_curve(losses: list[float], wanted: list[float], precision: str) -> None:
    """The contract: fp64 1e-8 relative at every epoch; fp32 1e-4 of the first loss; others as ``TOLERANCES`` has them."""
    assert len(losses) == len(wanted)
    if precision not in ("fp64", "fp32"):
        assert deviation(losses, wanted, precision).within
        return
    for loss, want in zip(losses, wanted, strict=True):
        assert abs(loss - want) <= (1e-8 * abs(want) if precision == "fp64" else 1e-4 * wanted[0])
