"""Correct & Smooth against a small SciPy reference, and label propagation against it too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import SmoothConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.schema import SPLITS
from tests.graphs import NUM_CLASSES, nasty_graph, typed_graph, with_weights
from tests.parity import cases
from tests.parity.covering import first_of, only, spread
from tests.pool import pool
from tests.sources.ogb_files import read

FORMS = ["dad", "da", "ad"]


def unlabelled_component(dataset: Dataset, extra: int = 40) -> Dataset:
    """The graph, and beside it one of its own that holds no training node."""
    rng, n = np.random.default_rng(5), dataset.num_nodes
    rows = np.repeat(np.arange(n), np.diff(dataset.indptr))
    more = rng.integers(extra, size=(2, 4 * extra)) + n
    ends = np.concatenate([np.asarray(dataset.indices), more[0]]), np.concatenate([rows, more[1]])
    indptr, indices = by_destination(*ends, n + extra)
    return Dataset.homogeneous(
        "apart",
        NUM_CLASSES,
        np.concatenate([dataset.features[0], rng.standard_normal((extra, dataset.features[0].shape[1])).astype(np.float32)]),
        np.concatenate([dataset.labels, rng.integers(NUM_CLASSES, size=extra)]),
        np.concatenate([dataset.split, np.full(extra, SPLITS["test"], np.uint8)]),
        indptr,
        indices,
    )


GRAPHS = {"isolated": nasty_graph(), "component": unlabelled_component(nasty_graph(seed=3)), "typed": typed_graph()}
GRAPHS |= {"weighted": with_weights(GRAPHS["component"]), "weighted_typed": with_weights(GRAPHS["typed"])}


def between_labelled(dataset: Dataset) -> tuple[scipy.sparse.csr_matrix, slice]:
    """The edges between nodes of the labelled type, or their weights, rows are destinations, and which ids these nodes have."""
    kind = int(dataset.schema.types_of(np.flatnonzero(dataset.split)[:1])[0])
    nodes = slice(*dataset.schema.offsets[kind : kind + 2])
    rows, columns = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)), np.asarray(dataset.indices)
    each = np.ones(len(rows)) if dataset.columns.weight is None else np.asarray(dataset.columns.weight, np.float64)
    matrix = scipy.sparse.csr_matrix((each, (rows, columns)), shape=(dataset.num_nodes,) * 2)
    return matrix[nodes, nodes], nodes


def normalised(matrix: Any, form: str) -> Any:
    degrees = np.asarray(matrix.sum(1))[:, 0]
    with np.errstate(divide="ignore"):
        inverse, root = (np.where(degrees > 0, degrees**power, 0) for power in (-1.0, -0.5))
    diagonal = scipy.sparse.diags
    if form == "dad":
        return diagonal(root) @ matrix @ diagonal(root)
    return diagonal(inverse) @ matrix if form == "da" else matrix @ diagonal(inverse)


def scipy_reference(config: SmoothConfig, dataset: Dataset, logits: np.ndarray) -> np.ndarray:
    """Huang et al., written down once more."""
    matrix, nodes = between_labelled(dataset)
    train = np.asarray(dataset.split[nodes]) == SPLITS["train"]
    known = np.eye(logits.shape[1])[np.asarray(dataset.labels[nodes])[train]]
    z = np.exp(logits - logits.max(1, keepdims=True))
    z /= z.sum(1, keepdims=True)
    error = np.zeros_like(z)
    error[train] = known - z[train]
    spread, s = error.copy(), normalised(matrix, config.correct_adjacency)
    for _ in range(config.correct_steps):
        spread = config.correct_alpha * (s @ spread) + (1 - config.correct_alpha) * error
        if config.autoscale:
            spread = np.clip(spread, -1, 1)
        else:
            spread[train] = error[train]
    if config.autoscale:
        size = np.abs(error[train]).sum() / train.sum()
        with np.errstate(divide="ignore"):
            scale = size / np.abs(spread).sum(1)
        scale[~np.isfinite(scale) | (scale > 1000)] = 1
        z = z + scale[:, None] * spread
    else:
        z = z + config.scale * spread
    z[train] = known
    start, s = z.copy(), normalised(matrix, config.smooth_adjacency)
    for _ in range(config.smooth_steps):
        z = np.clip(config.smooth_alpha * (s @ z) + (1 - config.smooth_alpha) * start, 0, 1)
    return z


def smoothed(group: Group, config: RunConfig, dataset: Dataset) -> tuple[np.ndarray, ...]:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.loop.train_epoch(0)
    logits = trainer.evaluator.predictions()
    ids = trainer.builder.whole().flow.own_outputs(trainer.ids).numpy()
    return ids, logits.clone().numpy(), trainer.evaluator.smoothed(logits).numpy()


def check(dataset: Dataset, smooth: SmoothConfig, **choices: Any) -> None:
    name = choices.pop("name", "rgcn" if dataset.schema.typed else "gat")  # GAT adds self-loops, which are not smoothed over
    config = dataclasses.replace(cases.run_config(cases.model_config(name), **choices), smooth=smooth)
    answers = pool(config.world)(smoothed, config, dataset)
    ids, logits, scores = (np.concatenate(one) for one in zip(*answers, strict=True))
    order = np.argsort(ids)
    want = scipy_reference(smooth, dataset, logits[order])
    assert np.abs(scores[order] - want).max() <= 1e-6
    assert np.abs(want - np.eye(len(want[0]))[want.argmax(1)]).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "world", "autoscale", "form"),
    [
        *spread(["isolated", "component", "typed"], [1, 2, 4], [True, False], FORMS),
        *spread(["weighted", "weighted_typed"], [1, 2], [True, False], FORMS),
    ],
)
def test_against_scipy(kind: str, world: int, autoscale: bool, form: str) -> None:
    smooth = SmoothConfig("cs", autoscale, 0.7, form, 0.8, 9, FORMS[FORMS.index(form) - 1], 0.6, 7)  # type: ignore[arg-type]
    check(GRAPHS[kind], smooth, world=world, partitioner="by_type" if "typed" in kind else "random")


MODES: list[Any] = [
    ["fp64", "fp32"],
    ["no_remat", "one_shot", "domain_parallel"],
    [("component", "sage"), ("typed", "rgcn"), ("weighted", "gcn"), ("weighted_typed", "rgcn")],
]


@pytest.mark.parametrize(
    ("precision", "mode", "kind", "name"),
    first_of(spread(*MODES), spread(*MODES, strength=2)),
)
def test_in_every_mode(precision: str, mode: str, kind: str, name: str) -> None:
    check(GRAPHS[kind], SmoothConfig("cs"), mode=mode, world=2, precision=precision, mfg=True, name=name)


def test_no_steps_change_nothing_but_the_training_rows() -> None:
    smooth = SmoothConfig("cs", correct_steps=0, smooth_steps=0, autoscale=False, scale=0.0)
    config = dataclasses.replace(cases.run_config(cases.model_config("sage")), smooth=smooth)
    _, logits, scores = smoothed(Group.single(), config, GRAPHS["isolated"])
    train = np.asarray(GRAPHS["isolated"].split) == SPLITS["train"]
    soft = torch.from_numpy(logits).softmax(1).numpy()
    np.testing.assert_allclose(scores[~train], soft[~train], atol=1e-12)
    assert np.array_equal(scores[train].argmax(1), GRAPHS["isolated"].labels[train])


def _whole_run(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.run()
    trainer.smooth()
    return {"smoothed": trainer.loop.history.smoothed, "peak": trainer.loop.history.peak_smooth_bytes}


@pytest.mark.parametrize(("kind", "world", "form"), spread([("component", 1), ("component", 4), ("weighted", 2)], FORMS))
def test_label_propagation(kind: str, world: int, form: str) -> None:
    dataset = GRAPHS[kind]
    config = cases.run_config(cases.model_config("label_propagation", adjacency=form), world=world)
    answers = pool(world)(smoothed, dataclasses.replace(config, smooth=SmoothConfig("cs")), dataset)
    ids, logits = (np.concatenate([answer[k] for answer in answers]) for k in (0, 1))
    train = np.asarray(dataset.split) == SPLITS["train"]
    start = np.eye(NUM_CLASSES)[np.asarray(dataset.labels)] * train[:, None]
    scores, s = start.copy(), normalised(between_labelled(dataset)[0], form)
    for _ in range(6):
        scores = np.clip(0.9 * (s @ scores) + 0.1 * start, 0, 1)
    reached = scores.sum(1) > 0
    assert 0 < reached.sum() < len(reached)
    want = np.full_like(scores, 1 / NUM_CLASSES)
    want[reached] = scores[reached] / scores[reached].sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(logits[np.argsort(ids)]), want, atol=1e-9)


@pytest.mark.parametrize("world", only([4], [1, 4]))
def test_over_a_linear_model_on_cora(cora: Path, world: int) -> None:
    """End to end: the run's smoothed accuracies are the reference's on the run's logits."""
    dataset = read(cora)
    config = dataclasses.replace(
        cases.run_config(cases.model_config("linear", norm="none", dropout=0.0), world=world, precision="fp32"),
        smooth=SmoothConfig("cs"),
    )
    found = pool(world)(_whole_run, config, dataset)[0]["smoothed"]
    trainer = cases.trainer_of(Group.single(), dataclasses.replace(config, world=1), dataset)
    trainer.run()
    want = scipy_reference(config.smooth, dataset, trainer.evaluator.predictions().double().numpy()).argmax(1) == dataset.labels
    for name in ("valid", "test"):
        rows = np.asarray(dataset.split) == SPLITS[name]
        assert abs(found[name] - want[rows].mean()) <= 0.005
    assert found["test"] > 0.7
