"""How good predictions are, over all workers: from counts and sums, what is of an order from scores gathered label by label.

Only known labels count. A value is the same on every rank, and for the same logits on any number of workers: exactly where it
is made of counts, but for the rounding of fp64 sums where it is a mean.

    accuracy   right rows / rows                             classes
    rocauc     the mean over labels that have both a true and a false known entry of the probability that a true one has a
               larger logit than a false one, ties counted half, as OGB's evaluator for ogbn-proteins has it;
               of two classes that of the second one's probability
    ap         the mean over labels that have a true known entry of sum_i (R_i - R_(i-1)) P_i over distinct scores from the
               largest down, with precision P_i and recall R_i of all that score at least as much, as scikit-learn has it
    f1         2 TP / (2 TP + FP + FN) over all labels, a label being predicted where its logit is above 0; 0 if there is none
    f1_macro   the mean of each class's, or label's, own f1, over those that are true or predicted somewhere
    f1_weighted  the mean of each class's own, weighted by how many rows are of it
    mse, mae   mean squared and mean absolute error
    r2         1 - (sum of squared errors) / (sum of squared deviations from the mean), the mean of it over columns that vary

How well pairs of nodes are told from negatives, from their scores or from their ranks among candidates
(``sargnn.tasks.full_ranks`` ranks pairs among all nodes):

    auc        the probability that a pair has a larger score than a negative, ties counted half
    ap         as above, over distinct scores of pairs and negatives
    hits@K     of scores: the share of pairs above the K-th largest negative, 1 with fewer than K negatives, as OGB's
               evaluators for ogbl-collab, ogbl-ppa and ogbl-ddi have it; of ranks: the share of ranks up to K
    mrr        the mean of 1 / rank, where a rank is 1 + larger candidates + equal ones / 2, as OGB's for ogbl-citation2
    mean_rank  the mean of ranks

Letters: M output rows, n rows of a split, C outputs; P pairs of this worker, Q its negatives, K candidates of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.resolve import is_target, resolve
from sargnn.steps import step
from sargnn.tasks.base import Targets
from sargnn.tasks.kinds import BY_ORDER, HITS, Scores, choose_metric, metric_name, smaller_is_better

_GATHERED_BYTES = 1 << 24
"""Of scores and labels that a rank has from all ranks at once; one label's in any case."""


def measure(metric: str, scores: Tensor, targets: Targets, group: Group) -> Scores:
    """The metric per split; None for an empty one, and where it is not defined or not finite. All workers must call it.

    ``metric``: as ``choose_metric`` gives it; ``scores``: logits or scores [M, C].
    """
    if is_target(metric):
        return {name: _own(metric, scores, targets, name, group) for name in targets.rows}
    if metric != "accuracy":  # the largest of bf16 numbers is that of the same in fp32
        scores = scores.to(wide(scores.dtype))
    if metric not in ("accuracy", "mse", "mae"):  # scores that are not finite, on whichever rank, have no order
        wrong = group.sum_(torch.stack([(~scores[rows].isfinite()).sum() for rows in targets.rows.values()]))
        finite = {name: count == 0 for name, count in zip(targets.rows, wrong.tolist(), strict=True)}
    if metric in BY_ORDER:
        of_label = roc_auc if metric == "rocauc" else average_precision
        areas = {
            name: mean_over_labels(*as_several_labels(scores[rows], targets.labels[rows]), group, of_label)
            for name, rows in targets.rows.items()
        }
        return {name: value if finite[name] else None for name, value in areas.items()}
    if metric in ("f1_macro", "f1_weighted"):
        every = group.sum_(torch.stack([_hits(scores[rows], targets.labels[rows]) for rows in targets.rows.values()]))
        means = [_mean_f1(of_split, weighted=metric == "f1_weighted") for of_split in every.double()]
        return {name: value if finite[name] else None for name, value in zip(targets.rows, means, strict=True)}
    if metric == "r2":
        return {
            name: _r2(scores[rows], targets.labels[rows], group) if finite[name] else None
            for name, rows in targets.rows.items()
        }
    if metric == "accuracy":
        right = scores.argmax(1) == targets.labels
        counts = group.sum_(torch.stack([right[rows].sum() for rows in targets.rows.values()]))
        return {
            name: count / targets.global_counts[name] if targets.global_counts[name] else None
            for name, count in zip(targets.rows, counts.tolist(), strict=True)
        }
    own = [(scores[rows], targets.labels[rows]) for rows in targets.rows.values()]
    if metric == "f1":
        counted = []  # true positives; false positives and false negatives together
        for own_scores, labels in own:
            predicted, true = own_scores > 0, labels == 1
            counted.append(torch.stack([(predicted & true).sum(), ((labels >= 0) & (predicted != true)).sum()]))
        hits = group.sum_(torch.stack(counted)).tolist()
        return {
            name: 2 * right / max(2 * right + wrong, 1) if targets.global_counts[name] and finite[name] else None
            for name, (right, wrong) in zip(targets.rows, hits, strict=True)
        }
    totals = []
    for own_scores, labels in own:
        errors = (own_scores.double() - labels.double())[labels.isfinite()]
        totals.append(errors.square().sum() if metric == "mse" else errors.abs().sum())
    sums = group.sum_(torch.stack(totals)).tolist()
    return {
        name: total / targets.global_counts[name] if targets.global_counts[name] and math.isfinite(total) else None
        for name, total in zip(targets.rows, sums, strict=True)
    }


def as_several_labels(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [n, C] and labels of two classes as those of one label, which is true in the second class; others as they are.

    The probability softmax(z)_1 = sigmoid(z_1 - z_0) grows with z_1 - z_0, which unlike it has no largest value that sure
    predictions would be rounded to: its order is the probability's, without ties that rounding makes.

    Returns:
        scores: [n, C]; of classes float64 [n, 1].
        labels: [n, C]; of classes, given as [n], int8 [n, 1].
    """
    if labels.dim() == 2:
        return scores, labels
    wide = scores.double()
    return (wide[:, 1] - wide[:, 0])[:, None], labels[:, None].to(torch.int8)


def _hits(scores: Tensor, labels: Tensor) -> Tensor:
    """int64 [3, C]: of each class or label the right, the wrongly predicted and the overlooked rows."""
    outputs = scores.shape[1]
    if labels.dim() == 2:
        predicted, true = (scores > 0) & (labels >= 0), labels == 1
        return torch.stack([(a & b).sum(0) for a, b in ((predicted, true), (predicted, ~true), (~predicted, true))])
    predicted = scores.argmax(1)
    of_class, predictions = (torch.bincount(rows, minlength=outputs) for rows in (labels, predicted))
    right = torch.bincount(labels[predicted == labels], minlength=outputs)
    return torch.stack([right, predictions - right, of_class - right])


def _mean_f1(hits: Tensor, *, weighted: bool) -> float | None:
    """From ``_hits`` of all workers, float64; None without a row."""
    right, wrong, overlooked = hits
    each = 2 * right / (2 * right + wrong + overlooked).clamp(min=1)
    weights = right + overlooked if weighted else (hits.sum(0) > 0).double()
    return float((each * weights).sum() / weights.sum()) if weights.sum() else None


def _r2(values: Tensor, labels: Tensor, group: Group) -> float | None:
    """None where no column varies."""
    known = labels.isfinite()
    labels, errors = labels.double().nan_to_num(0.0), (values.double() - labels.double()).nan_to_num(0.0)
    sums = group.sum_(torch.stack([known.double().sum(0), labels.sum(0), (errors.square() * known).sum(0)]))
    deviations = (labels - sums[1] / sums[0].clamp(min=1)).square() * known
    spread = group.sum_(deviations.sum(0))
    columns = torch.nonzero(spread > 0)[:, 0]
    return float((1 - sums[2][columns] / spread[columns]).mean()) if len(columns) else None


def own_value(target: str, scores: Tensor, labels: Tensor) -> float:
    """What the function that a target names gives for scores [n, C] and labels [n] or [n, C].

    Raises ``ConfigError`` where it is no function, fails, or gives no number.
    """
    function = resolve("metric", {}, target)
    try:
        return float(function(scores, labels))
    except Exception as error:  # whatever code outside raises
        raise ConfigError(
            "'metric' names no function that gives a number for scores and labels.",
            given=f"{target}: {type(error).__name__}: {str(error)[:200]}",
            allowed=f"a function of scores {list(scores.shape)} and labels {list(labels.shape)}, tensors",
        ) from error


def check_metric(task: str, wanted: str | None, outputs: int, labels: np.ndarray) -> str:
    """The metric as ``choose_metric`` gives it. One's own is called once, and it is said which of its values are better.

    ``labels``: some known rows, [n] or [n, C]. Raises ``ConfigError`` as ``choose_metric`` and ``own_value``.
    """
    metric = choose_metric(task, wanted, outputs)
    if is_target(metric):
        scores = torch.linspace(-1.0, 1.0, len(labels) * outputs).reshape(len(labels), outputs)
        own_value(metric, scores, torch.from_numpy(labels))
        name = metric_name(metric)
        step(f"{name}: {'smaller' if smaller_is_better(name) else 'larger'} values are better")
    return metric


def _own(target: str, scores: Tensor, targets: Targets, split: str, group: Group) -> float | None:
    """A metric of one's own, of all rows of a split in the order of their numbers; the first rank's value counts."""
    rows = targets.rows[split]
    ids = torch.arange(len(scores)) if targets.ids is None else targets.ids
    counts = [int(length) for length in group.gather(torch.tensor(len(rows), dtype=torch.int64))]
    if not targets.global_counts[split]:
        return None
    labels = targets.labels[rows].reshape(len(rows), -1)
    tables = scores[rows].to(wide(scores.dtype)), labels, ids[rows.cpu()][:, None].to(scores.device)
    whole = []
    for table in tables:
        gathered = group.gather(_padded(table, max(counts)))
        whole.append(torch.cat([piece[:, :count] for piece, count in zip(gathered, counts, strict=True)], 1).T)
    order = whole[2][:, 0].argsort()
    all_labels = whole[1][order] if targets.labels.dim() == 2 else whole[1][order, 0]
    own = own_value(target, whole[0][order].cpu(), all_labels.cpu()) if group.rank == 0 else 0.0
    value = float(group.sum_(torch.tensor(own, dtype=torch.float64)))
    return value if math.isfinite(value) else None


OfLabel = Callable[[Tensor, Tensor], float | None]
"""A measure of one label, from scores [n] and whether it is true, bool [n]; None where it is not defined."""


def mean_over_labels(scores: Tensor, labels: Tensor, group: Group, of_label: OfLabel) -> float | None:
    """The mean of a measure over the labels for which it is defined, None if there is no such label.

    A few labels at a time, everybody gets the scores [n, C] of all ranks and their labels, int8 [n, C], -1 where not known;
    each rank sorts those of its own share of the labels.
    """
    counts = [int(length) for length in group.gather(torch.tensor(len(scores), dtype=torch.int64))]
    most, outputs = max(counts), scores.shape[1]
    own_areas = torch.zeros(2, outputs, dtype=torch.float64)  # areas, and whether there is one
    size = max(1, _GATHERED_BYTES // max(1, group.world * most * (scores.element_size() + 1)))
    for first in range(0, outputs if most else 0, size):
        chunk = slice(first, min(first + size, outputs))
        pieces = group.gather(_padded(scores[:, chunk], most))
        marks = group.gather(_padded(labels[:, chunk], most))
        for label in range(chunk.start, chunk.stop):
            if label % group.world != group.rank:
                continue
            column = torch.cat([piece[label - first, :count] for piece, count in zip(pieces, counts, strict=True)])
            marked = torch.cat([mark[label - first, :count] for mark, count in zip(marks, counts, strict=True)])
            known = marked >= 0
            area = of_label(column[known], marked[known] == 1)
            if area is not None:
                own_areas[0, label], own_areas[1, label] = area, 1.0
    areas, defined = group.sum_(own_areas)
    number = int(defined.sum())
    return float(areas.sum()) / number if number else None


def _padded(rows: Tensor, length: int) -> Tensor:
    """[n, k] as [k, length]: what stands behind n is of no meaning."""
    padded = rows.new_zeros(rows.shape[1], length)
    padded[:, : len(rows)] = rows.T
    return padded


def roc_auc(scores: Tensor, positive: Tensor) -> float | None:
    """(number of pairs of a positive and a smaller negative + half the ties) / pairs; None without a pair.

    In whole numbers, so that the order of the rows decides nothing. scores: [n], positive: bool [n].
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    ordered, order = scores.sort()
    starts = torch.ones(len(ordered), dtype=torch.bool, device=scores.device)
    starts[1:] = ordered[1:] != ordered[:-1]
    tie = starts.cumsum(0) - 1  # which run of equal scores each row belongs to
    true = tie.new_zeros(int(tie[-1]) + 1).index_add_(0, tie, positive[order].long())
    false = torch.bincount(tie) - true
    below = false.cumsum(0) - false
    return int((true * (2 * below + false)).sum()) / (2 * positives * negatives)


def average_precision(scores: Tensor, positive: Tensor) -> float | None:
    """The module's ``ap`` of one label, [n] each, its terms added in scikit-learn's order; None without a positive."""
    values, run = scores.unique(return_inverse=True)
    true = torch.bincount(run[positive], minlength=len(values)).cpu().numpy()
    if not true.sum():
        return None
    every = torch.bincount(run, minlength=len(values)).cpu().numpy()
    positives_above, above = true[::-1].cumsum()[::-1], every[::-1].cumsum()[::-1]
    recall = np.append(positives_above / true.sum(), 0.0)
    return float(max(0.0, -np.sum(np.diff(recall) * (positives_above / above))))


"""K of ``hits@K`` that are measured whatever the metric is."""


def measure_pairs(group: Group, positives: Tensor, negatives: Tensor, hits: Sequence[int] = HITS) -> dict[str, float | None]:
    """``auc``, ``ap`` and ``hits@K`` of the scores of pairs [P] and negatives [Q] of all workers. All workers must call it.

    Every worker holds all scores while it counts. A value is None where it is not defined: without pairs, ``auc`` and ``ap``
    without negatives, and where a score is not finite.
    """
    positives, negatives = (gather_rows(group, scores.detach()).cpu() for scores in (positives, negatives))
    scores = torch.cat([positives, negatives])
    if not len(positives) or not scores.isfinite().all():
        return dict.fromkeys(["auc", "ap", *(f"hits@{k}" for k in hits)])
    best = negatives.topk(min(max(hits), len(negatives))).values
    shares = {f"hits@{k}": int((positives > best[k - 1]).sum()) / len(positives) if k <= len(best) else 1.0 for k in hits}
    if not len(negatives):
        return {"auc": None, "ap": None, **shares}
    is_pair = torch.arange(len(scores)) < len(positives)
    return {"auc": roc_auc(scores, is_pair), "ap": average_precision(scores, is_pair), **shares}


def measure_ranks(group: Group, ranks: Tensor, hits: Sequence[int] = HITS) -> dict[str, float | None]:
    """``mrr``, ``hits@K`` and ``mean_rank``, means over all workers' pairs, of float64 [P] from 1. All workers must call it.

    All are None without pairs, and where a rank is not finite.
    """
    own = [ranks.reciprocal(), *(ranks <= k for k in hits), ranks, torch.ones_like(ranks)]
    *sums, count = group.sum_(torch.stack([values.sum(dtype=torch.float64) for values in own])).tolist()
    names = ["mrr", *(f"hits@{k}" for k in hits), "mean_rank"]
    if not count or not math.isfinite(sums[-1]):
        return dict.fromkeys(names)
    return {name: total / count for name, total in zip(names, sums, strict=True)}


def mean_ranks(positive: Tensor, candidates: Tensor) -> Tensor:
    """Float64 [P] of scores [P] and candidates' [P, K], the mean of a pair's best and worst rank among ties; NaN where any of
    these is not finite.
    """
    own = positive[:, None]
    ranks = 1 + (candidates > own).sum(1).double() + (candidates == own).sum(1) / 2
    return ranks.where(positive.isfinite() & candidates.isfinite().all(1), torch.nan)


def gather_rows(group: Group, rows: Tensor) -> Tensor:
    """All ranks' rows [sum of n, ...] in rank order, where ``rows`` lie, of a dtype that NumPy has. All ranks must call it."""
    pieces = swap(group, [rows.cpu().numpy()] * group.world, "gathering what is ranked")
    return torch.from_numpy(np.concatenate(pieces)).to(rows.device)
