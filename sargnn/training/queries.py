"""The steps and evaluations of ``task=queries``: which queries a view asks, on the graph without the links that these ask for.

Training pairs are dealt into steps as those of links are (``training.pairs``). A step computes all rows, but no message of it
goes along an edge between the two ends of one of its pairs: the answer would be written there.

Letters: S steps, K micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sargnn.plan.drawn import LeftOut, Sample
from sargnn.sources.links import read_pairs, relation_of
from sargnn.tasks.queries import QueryTargets, QueryTask
from sargnn.training.fit import SLACK, Fitted, Setup
from sargnn.training.pairs import PARTNER_SCORES, PARTNERS, SCORES, DealtSteps, Write
from sargnn.training.views import View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer


class QuerySteps(DealtSteps):
    """Steps of so many queries at most, in so many views each. All workers make one, and call its methods, together."""

    _task: QueryTask

    def __init__(self, setup: Setup, task: QueryTask) -> None:
        config = setup.config
        runs = -(-task.count_pairs("train") // max(1, config.links.queries // task.sides))
        batches = config.batches.count
        assert isinstance(batches, int)
        self._every = Sample((-1,) * len(setup.model.uses_edges), config.seed, 0)
        super().__init__(setup.builder, setup.engine.group, task, count=-(-runs // batches), batches=batches)

    def _view(self, chosen: np.ndarray, step: int, total: int) -> View:
        left_out = LeftOut(*self._task.edges_of(chosen))
        targets = self._task.training_targets(chosen, step, total)
        view = self._builder.drawn(self._task.rows(), total, self._every, left_out=left_out)
        return dataclasses.replace(view, targets=targets)


class MeasuredQueries(Sequence[View]):
    """The views of an evaluation, each made when it is asked for, on the whole graph. All workers must ask together."""

    def __init__(self, builder: ViewBuilder, task: QueryTask, per_view: int) -> None:
        self._builder, self._task = builder, task
        share = max(1, per_view // (task.sides * task.group.world))
        self._runs = [
            (split, first, first + share) for split, count in task.measured_pairs().items() for first in range(0, count, share)
        ]

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        return dataclasses.replace(self._builder.whole(), targets=self._task.measured_targets(*self._runs[number]))

    def __iter__(self) -> Iterator[View]:
        return (self[number] for number in range(len(self)))


def fit_queries(setup: Setup) -> Fitted:
    """The steps and evaluations of a run that asks for answers. All ranks must call it together."""
    task = setup.task
    assert isinstance(task, QueryTask)
    setup.engine.pool.slack = SLACK
    return Fitted(QuerySteps(setup, task), MeasuredQueries(setup.builder, task, setup.config.links.queries))


def write_answers(trainer: Trainer, asked: dict[str, Any], write: Write) -> dict[str, Any]:
    """Write each node's best answers, or scores of pairs, as was asked for; ``training.pairs.write_pairs`` has the files. All
    workers must call it together. Gives what ``evaluation.json`` holds.
    """
    task, group, schema = trainer.task, trainer.engine.group, trainer.graph.part.schema
    assert isinstance(task, QueryTask)
    trainer.model.eval()
    with torch.no_grad():
        judged = {"evaluation": task.judged_by(trainer.evaluator.measure())}
    if not (asked["pairs"] or asked["top"]):
        return judged
    number, per_view = relation_of(schema, asked["relation"]), trainer.config.links.queries
    relation = schema.relations[number]
    first_head, first_tail = schema.offsets[relation.source], schema.offsets[relation.destination]

    def outputs(heads: np.ndarray) -> tuple[Tensor, QueryTargets]:
        targets = task.asked_targets(heads, number)
        view = dataclasses.replace(trainer.builder.whole(), targets=targets)
        with torch.no_grad():
            return trainer.forward.logits(view), targets

    if asked["pairs"]:
        pairs = read_pairs(Path(asked["pairs"]))
        heads, of = np.unique(pairs[0], return_inverse=True)
        scores, order = torch.zeros(pairs.shape[1]), np.argsort(of, kind="stable")
        starts = np.arange(0, len(heads), per_view)
        for at, which in zip(starts.tolist(), np.split(order, np.searchsorted(of[order], starts[1:])), strict=True):
            out, _ = outputs(heads[at : at + per_view] + first_head)
            scores[torch.from_numpy(which)] = task.scores_of(out, pairs[1, which] + first_tail, of[which] - at).float().cpu()
        own = np.arange(group.rank, pairs.shape[1], group.world)
        write(SCORES, scores[torch.from_numpy(own)], own)
    if asked["top"]:
        count, own = int(asked["top"]), np.zeros(0, np.int64)
        tables: list[tuple[Tensor, Tensor]] = []
        heads = np.arange(schema.count(relation.source))
        for at in range(0, len(heads), per_view):
            now = heads[at : at + per_view]
            partners, best = task.best(*outputs(now + first_head), count)
            mine = np.arange(group.rank, len(now), group.world)
            own = np.concatenate([own, now[mine]])
            tables.append((partners[torch.from_numpy(mine)], best[torch.from_numpy(mine)]))
        partners, best = (torch.cat(each) for each in zip(*tables, strict=True))
        write(PARTNERS, torch.where(partners >= 0, partners - first_tail, partners), own)
        write(PARTNER_SCORES, best, own)
    return judged
