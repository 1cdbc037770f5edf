"""Metrics against scikit-learn's and OGB's, on one worker and spread over several."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.run import Metric
from sargnn.errors import ConfigError
from sargnn.graph.schema import SPLITS
from sargnn.interop.ogb import rocauc
from sargnn.tasks import metrics
from sargnn.tasks.kinds import Scores
from tests.pool import pool
from tests.tasks.made import node_task


def several_labels(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores [200, 6] with many ties, labels with unknown entries, split. One label is never false, one never known, and one
    is true and false outside the training nodes only."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 0, 1], size=(200, 6), p=[0.2, 0.5, 0.3]).astype(np.int8)
    scores = np.round(rng.normal(0, 1, (200, 6)) + 0.8 * (labels == 1), 1).astype(np.float32)
    split = rng.choice([0, 1, 2, 3], size=200).astype(np.uint8)
    labels[:, 1] = np.where(labels[:, 1] >= 0, 1, -1)
    labels[:, 2] = -1
    labels[split == SPLITS["train"], 3] = 0
    return scores, labels, split


def measured(
    group: Group, metric: Metric, scores: np.ndarray, labels: np.ndarray, split: np.ndarray, owner: np.ndarray, most_bytes: int
) -> Scores:  # fmt: skip
    """By all ranks, each with the rows of ``owner``."""
    own = owner == group.rank
    before, metrics._GATHERED_BYTES = metrics._GATHERED_BYTES, most_bytes
    try:
        task = node_task(labels[own], split[own], group, metric=metric)
        return task.metrics(torch.from_numpy(scores[own]), task.targets(None))
    finally:
        metrics._GATHERED_BYTES = before


def alone(metric: Metric, scores: np.ndarray, labels: np.ndarray, split: np.ndarray) -> Scores:
    return measured(Group.single(), metric, scores, labels, split, np.zeros(len(split), int), 1 << 24)


def test_rocauc_is_scikit_learns_and_ogbs() -> None:
    from sklearn.metrics import roc_auc_score

    scores, labels, split = several_labels()
    found = alone("rocauc", scores, labels, split)
    for name, value in SPLITS.items():
        own = split == value
        areas = [
            roc_auc_score(column[known], row[known])
            for column, row in zip(labels[own].T, scores[own].T, strict=True)
            if len(set(column[known := column >= 0])) == 2
        ]
        assert len(areas) == (3 if name == "train" else 4)
        assert found[name] == pytest.approx(np.mean(areas), abs=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its imports
            assert found[name] == pytest.approx(rocauc(labels[own], scores[own]), abs=1e-12)


def test_rocauc_without_a_pair_is_none() -> None:
    scores, labels, split = several_labels()
    only = labels[:, 1:3]
    assert alone("rocauc", scores[:, 1:3], only, split) == {"train": None, "valid": None, "test": None}
    assert rocauc(only, scores[:, 1:3]) is None
    assert metrics.roc_auc(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) is None


def test_ties_count_half() -> None:
    assert metrics.roc_auc(torch.tensor([1.0, 1.0, 0.0, 2.0]), torch.tensor([True, False, False, False])) == 0.5
    assert metrics.roc_auc(torch.ones(5), torch.tensor([True, False, False, True, True])) == 0.5
    assert metrics.roc_auc(torch.tensor([0.0, 1.0]), torch.tensor([False, True])) == 1.0


@pytest.mark.parametrize("most_bytes", [1, 1500, 1 << 24])
def test_rocauc_over_ranks_is_the_same_number(most_bytes: int) -> None:
    """Ties across ranks, a rank without rows, labels one at a time, a few and all at once."""
    scores, labels, split = several_labels()
    want = alone("rocauc", scores, labels, split)
    owner = np.random.default_rng(1).choice([0, 1, 3], p=[0.7, 0.2, 0.1], size=len(split))
    assert len({*scores[owner == 0, 0]} & {*scores[owner == 1, 0]}) > 5
    for found in pool(4)(measured, "rocauc", scores, labels, split, owner, most_bytes):
        assert found == want


def two_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [300, 2] in eighths, so that many differ by the same; those by about 20 have probability 1 in float32."""
    rng = np.random.default_rng(2)
    labels, split = rng.choice(2, size=300, p=[0.8, 0.2]), rng.choice([0, 1, 2, 3], size=300).astype(np.uint8)
    logits = np.round(8 * rng.normal(0, 1, (300, 2))) / 8
    logits[:, 1] += labels + np.where(rng.random(300) < 0.2, 20, 0)
    return logits.astype(np.float32), labels, split


@pytest.mark.parametrize("world", [1, 3])
def test_rocauc_of_two_classes_is_scikit_learns(world: int) -> None:
    from scipy.special import softmax
    from sklearn.metrics import roc_auc_score

    logits, labels, split = two_classes()
    split[split == SPLITS["valid"]] *= labels[split == SPLITS["valid"]] == 0  # one class only
    owner = np.random.default_rng(1).choice(world, size=len(split)) // 2 * 2  # of three ranks one has no row
    probability, rounded = softmax(logits.astype(np.float64), 1)[:, 1], softmax(logits, 1)[:, 1]
    assert len(np.unique(probability)) < len(probability)
    for scores in pool(world)(measured, "rocauc", logits, labels, split, owner, 1):
        assert scores["valid"] is None
        for name in ("train", "test"):
            own = split == SPLITS[name]
            assert scores[name] == pytest.approx(roc_auc_score(labels[own], probability[own]), abs=1e-12)
            assert scores[name] != pytest.approx(roc_auc_score(labels[own], rounded[own]), abs=1e-4)


def test_rocauc_of_classes_is_of_two() -> None:
    for classes in (1, 3):
        with pytest.raises(ConfigError, match=rf"two.*\n.*metric=rocauc, {classes} class(.|\n)*metric=accuracy"):
            node_task([0, 0], [1, 2], metric="rocauc", num_classes=classes)


def test_f1_is_scikit_learns() -> None:
    from sklearn.metrics import f1_score

    scores, labels, split = several_labels()
    found = alone("f1", scores, labels, split)
    for name, value in SPLITS.items():
        known = labels[split == value] >= 0
        want = f1_score(labels[split == value][known], scores[split == value][known] > 0)
        assert found[name] == pytest.approx(want, abs=1e-12)
    owner = np.arange(len(split)) % 2
    assert pool(2)(measured, "f1", scores, labels, split, owner, 1)[0] == found
    assert alone("f1", -np.abs(scores), np.minimum(labels, 0), split)["test"] == 0  # nothing true, nothing predicted


@pytest.mark.parametrize("metric", ["mse", "mae"])
def test_errors_are_scikit_learns(metric: Metric) -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    rng = np.random.default_rng(0)
    scores, labels = (rng.normal(0, 3, (150, 3)).astype(np.float32) for _ in range(2))
    labels[rng.random(labels.shape) < 0.3] = np.nan
    split = rng.choice([0, 1, 3], size=150).astype(np.uint8)
    found = alone(metric, scores, labels, split)
    judge = {"mse": mean_squared_error, "mae": mean_absolute_error}[metric]
    for name in ("train", "test"):
        own = split == SPLITS[name]
        known = ~np.isnan(labels[own])
        assert found[name] == pytest.approx(judge(labels[own][known].astype(float), scores[own][known].astype(float)), rel=1e-9)
    assert found["valid"] is None
    spread = pool(2)(measured, metric, scores, labels, split, np.zeros(150, int), 1)  # all rows on one rank
    assert spread[1] == found
    scores[split == SPLITS["test"]] = np.inf
    assert alone(metric, scores, labels, split)["test"] is None


def classes(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores [200, 5], classes of which one is nowhere and one is never right, and split."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, 2, 4], size=200, p=[0.5, 0.3, 0.1, 0.1])
    scores = rng.normal(0, 1, (200, 5)).astype(np.float32) + 1.5 * np.eye(5, dtype=np.float32)[labels]
    scores[:, 3:] -= 9
    return scores, labels, rng.choice([0, 1, 2, 3], size=200).astype(np.uint8)


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_f1_of_classes_is_scikit_learns(average: str) -> None:
    from sklearn.metrics import f1_score

    scores, labels, split = classes()
    spread = alone(f"f1_{average}", scores, labels, split)  # type: ignore[arg-type]
    for name, value in SPLITS.items():
        own = split == value
        wanted = f1_score(labels[own], scores[own].argmax(1), average=average, zero_division=0)
        assert spread[name] == pytest.approx(wanted, abs=1e-12)


def test_macro_f1_of_labels_is_scikit_learns() -> None:
    from sklearn.metrics import f1_score

    scores, labels, split = several_labels()
    labels = np.abs(labels)  # scikit-learn knows nothing of labels that are not known
    found = alone("f1_macro", scores, labels.astype(np.int8), split)
    for name, value in SPLITS.items():
        own = split == value
        predicted = scores[own] > 0
        there = (labels[own] + predicted).any(0)
        assert found[name] == pytest.approx(f1_score(labels[own][:, there], predicted[:, there], average="macro"), abs=1e-12)


def test_average_precision_is_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score

    scores, labels, split = several_labels()
    found = alone("ap", scores, labels, split)
    for name, value in SPLITS.items():
        own = split == value
        each = [
            average_precision_score(column[column >= 0], row[column >= 0])
            for column, row in zip(labels[own].T, scores[own].T, strict=True)
            if (column == 1).any()
        ]
        assert found[name] == pytest.approx(np.mean(each), abs=1e-12)
    two, of_two = scores[:, :2], (labels[:, 0] == 1).astype(np.int64)
    in_test = split == SPLITS["test"]
    wanted = average_precision_score(of_two[in_test], (two[:, 1].astype(float) - two[:, 0])[in_test])
    assert alone("ap", two, of_two, split)["test"] == pytest.approx(wanted, abs=1e-12)


def test_r2_is_scikit_learns() -> None:
    from sklearn.metrics import r2_score

    rng = np.random.default_rng(0)
    labels = rng.normal(3, 2, (200, 3)).astype(np.float32)
    values, split = labels + rng.normal(0, 1, (200, 3)).astype(np.float32), rng.choice([0, 1, 2, 3], size=200).astype(np.uint8)
    labels[rng.random(labels.shape) < 0.2] = np.nan
    labels[:, 2] = 1.5
    found = alone("r2", values, labels, split)
    for name, value in SPLITS.items():
        each = [
            r2_score(column[known].astype(np.float64), row[known].astype(np.float64))
            for column, row in zip(labels[split == value].T[:2], values[split == value].T[:2], strict=True)
            for known in [np.isfinite(column)]
        ]
        assert found[name] == pytest.approx(np.mean(each), abs=1e-12)
    assert alone("r2", values[:, 2:], labels[:, 2:], split)["test"] is None


@pytest.mark.parametrize("metric", ["ap", "f1_macro", "f1_weighted", "r2"])
def test_further_metrics_over_ranks(metric: Metric) -> None:
    scores, labels, split = several_labels() if metric == "ap" else classes()
    if metric == "r2":
        labels = labels.astype(np.float32)[:, None] + np.zeros((1, 5), np.float32)
    wanted = alone(metric, scores, labels, split)
    owner = np.random.default_rng(1).integers(0, 4, len(split)) % 3  # rank 3 of 4 has none
    for answer in pool(4)(measured, metric, scores, labels, split, owner, 1 << 24):
        assert answer == pytest.approx(wanted, rel=1e-12)
