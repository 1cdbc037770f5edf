"""The steps and evaluations of ``task=queries``: which queries a view asks, on the graph without the links that these ask for.

Training pairs are dealt into steps as those of links are (``training.pairs``). A step computes all rows, but no message of it
goes along an edge between the two ends of one of its pairs: the answer would be written there. Its micro-batches all leave the
whole step's edges out, so that their number changes no loss.

Letters: S steps, K micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sargnn.plan.drawn import LeftOut, Sample
from sargnn.plan.sizes import Groups
from sargnn.sources.links import read_pairs, relation_of
from sargnn.tasks.queries import QueryTargets, QueryTask
from sargnn.training.fit import SLACK, Candidates, Setup
from sargnn.training.pairs import PARTNER_SCORES, PARTNERS, SCORES, DealtSteps, Write
from sargnn.training.views import View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer


class QuerySteps(DealtSteps):
    """Steps of as many queries as are configured. All workers make one, and call its methods, together. ``sample``: of all
    edges.
    """

    _task: QueryTask

    def __init__(self, builder: ViewBuilder, task: QueryTask, *, count: int, batches: int, sample: Sample) -> None:
        self._every = sample
        super().__init__(builder, task.group, task, count=count, batches=batches)

    def _view(self, chosen: np.ndarray, step: int, total: int) -> View:
        of_step = np.flatnonzero(self._run_of // self.batches == step % self.count)
        left_out = LeftOut(*self._task.edges_of(of_step))
        targets = self._task.training_targets(chosen, step, total)
        view = self._builder.drawn(self._task.rows(), total, self._every, left_out=left_out)
        return dataclasses.replace(view, targets=targets)


class MeasuredQueries(Sequence[View]):
    """The views of an evaluation, each made when it is asked for, on the whole graph: all workers' pairs, one worker's after
    the other's, are as many views as that takes. All workers must ask together.

    Args:
        pairs: of a view.
        queries: that these are.
    """

    def __init__(self, builder: ViewBuilder, task: QueryTask, pairs: int, queries: int) -> None:
        self._builder, self._task, self._pairs, self.queries = builder, task, pairs, queries
        counts = task.measured_pairs()
        self._before = {split: sum(of_split[: task.group.rank]) for split, of_split in counts.items()}
        self._runs = [(split, first) for split, of_split in counts.items() for first in range(0, sum(of_split), pairs)]

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        split, first = self._runs[number]
        own = slice(*(max(0, end - self._before[split]) for end in (first, first + self._pairs)))
        return dataclasses.replace(self._builder.whole(), targets=self._task.measured_targets(split, own))

    def __iter__(self) -> Iterator[View]:
        return (self[number] for number in range(len(self)))


class QueryCandidates(Candidates):
    """Of a run that asks for answers. All views compute all rows, from about all edges; fewer queries need less memory."""

    all_held = holds_constants = False

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.task, QueryTask)
        self._setup, self._task, self._counts = setup, setup.task, setup.task.counts()
        self._every = Sample((-1,) * len(setup.model.uses_edges), setup.config.seed, 0)

    @property
    def most(self) -> int:
        return 1 if self._setup.model.norms_over_rows else self._counts.most  # another number would change losses

    @cached_property
    def _whole(self) -> Groups:
        sizes, counts = self._setup.builder.drawn_sizes(self._task.rows(), self._every, holds_constants=False)
        return Groups(np.zeros(0, np.int32), (sizes,), (counts,))

    def groups(self, count: int) -> Groups:
        return self._whole

    def queries(self, count: int) -> tuple[int, int]:
        return self._counts.of_view(count), self._counts.of_evaluation(count)

    def steps(self, count: int) -> QuerySteps:
        self._setup.engine.pool.slack = SLACK
        return QuerySteps(self._setup.builder, self._task, count=self._counts.steps, batches=count, sample=self._every)

    def evaluations(self, count: int) -> MeasuredQueries:
        queries = self._counts.of_evaluation(count)
        return MeasuredQueries(self._setup.builder, self._task, queries // self._counts.of_pair, queries)


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
    number, views = relation_of(schema, asked["relation"]), trainer.evaluator.views
    assert isinstance(views, MeasuredQueries)
    per_view = views.queries
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
