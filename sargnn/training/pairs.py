"""The optimizer steps of an epoch of ``task=links`` and ``task=edges``: which pairs make each, and the rows that these reach.

Training pairs are shuffled in every epoch, as training nodes are (``training.steps``), by ids of both ends: S K runs of them
are the K micro-batches of the S steps. One step on the full graph computes all rows; else a message flow computes those that a
pair or a negative of any worker ends in.

What ``sargnn predict`` writes of such a run: ``write_pairs``.

Letters: N own rows, F width of an embedding, C outputs, P pairs of this worker or of a file, S steps, K micro-batches or
partners.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.graph.schema import Schema
from sargnn.plan.drawn import LeftOut, Sample
from sargnn.plan.sizes import Groups
from sargnn.sources.links import read_pairs, relation_of
from sargnn.tasks.base import Task
from sargnn.tasks.edges import EdgeTask
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, PREDICTIONS
from sargnn.tasks.links import LinkTask
from sargnn.tasks.pairs import DealtPairs, PairTask
from sargnn.tracking.memory import trim
from sargnn.training.fit import LOOKED_AT, SLACK, Candidates, Setup, holds_constants, sampler, trains_in_batches
from sargnn.training.steps import Steps, deal
from sargnn.training.views import Constants, View, ViewBuilder

SCORES, PARTNERS, PARTNER_SCORES = "pair_scores.npy", "partners.npy", "partner_scores.npy"
_PAIRS = 1 << 17
"""That a worker asks for at a time, where it need not ask for all."""

Write = Callable[[str, Tensor, np.ndarray], None]
"""Writes a table by its name, from the rows of it that this worker has, and which these are; all workers call it together."""


class DealtSteps(Steps):
    """Steps of shuffled training pairs, whose views are made anew. All workers make one, and call its methods, together.

    Args:
        count: S.
        batches: K.
    """

    def __init__(self, builder: ViewBuilder, group: Group, task: DealtPairs, *, count: int, batches: int) -> None:
        self._builder, self._group, self._task = builder, group, task
        self.count, self.batches, self.drawn = count, batches, True
        self._run_of = np.zeros(0, np.int64)
        self._totals = np.zeros(count, np.int64)
        self._last: View | None = None
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch, runs = epoch, self.count * self.batches
        self._run_of = deal(self._task.step_keys(epoch), runs, self._group)
        terms = np.bincount(self._run_of, self._task.known_labels(), runs).reshape(self.count, -1).sum(1)
        self._totals = self._group.sum_(torch.from_numpy(terms.astype(np.int64))).numpy()

    def views(self, step: int) -> Sequence[View]:
        return _DealtViews(self, step)

    def view(self, step: int, number: int) -> View:
        """Drawn now."""
        self.forget()
        trim()
        chosen = np.flatnonzero(self._run_of == step * self.batches + number)
        self._last = self._view(chosen, self.epoch * self.count + step, int(self._totals[step]))
        return self._last

    @abstractmethod
    def _view(self, chosen: np.ndarray, step: int, total: int) -> View:
        """Of some of this worker's training pairs (int64), for a step since the beginning; ``total``: terms of its loss."""

    @property
    def last_view(self) -> View | None:
        return self._last

    def forget(self) -> None:
        self._last = None


class PairSteps(DealtSteps):
    """Steps of pairs that are scored.

    Args:
        task: makes batches of pairs, of links with negatives.
        sample: gives the sample of a step, by its number since the beginning and its epoch; None: all edges.
        flows: each view is a message flow of its own; else all compute every row.
        constants: the first layer's aggregates that all flows share, where there are such, and what makes them anew.
    """

    _task: PairTask

    def __init__(
        self,
        builder: ViewBuilder,
        group: Group,
        task: PairTask,
        *,
        count: int,
        batches: int,
        sample: Callable[[int, int], Sample] | None,
        flows: bool,
        constants: tuple[Constants | None, Callable[[], Constants | None]],
    ) -> None:
        self._sample = sample
        self._constants, self._again = constants
        self.holds_constants = self._constants is not None
        super().__init__(builder, group, task, count=count, batches=batches)
        self.drawn = flows

    def _view(self, chosen: np.ndarray, step: int, total: int) -> View:
        batch = self._task.batch(chosen, step)
        self._task.release()
        trim()  # of what drawing and asking took
        if self.drawn:
            sample = None if self._sample is None else self._sample(step, self.epoch)
            left_out = None if sample is None or batch.no_messages is None else self._edges_of(batch.no_messages)
            view = self._builder.drawn(batch.lists.rows(), total, sample, self._constants, left_out=left_out)
        else:
            view = self._builder.whole()
        return dataclasses.replace(view, targets=self._task.targets_of(batch, view.flow.output_rows, total))

    def _edges_of(self, pairs: np.ndarray) -> LeftOut:
        """The edges between the ends of pairs (int64 [P, 2]) that all workers have in hand, both ways, that end in own rows:
        these rows, and the original ids of their sources.
        """
        ends, others = np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])
        return LeftOut(*self._task.directory.send(ends, others))

    def remake(self) -> None:
        self._constants = self._again()


class _DealtViews(Sequence[View]):
    """Made one by one."""

    def __init__(self, steps: DealtSteps, step: int) -> None:
        self._steps, self._step = steps, step

    def __len__(self) -> int:
        return self._steps.batches

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._steps.view(self._step, number)


class PairCandidates(Candidates):
    """Of a task that predicts pairs. Its views are message flows of their own, made before each step, unless one computes all
    rows.
    """

    all_held = False

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.task, PairTask)
        config, self._setup, self._task = setup.config, setup, setup.task
        self._flows = trains_in_batches(config)
        self._sample = sampler(config, setup.model) if config.samples else None
        self.holds_constants = self._flows and holds_constants(config, setup.model, setup.engine)
        self._constants = self._make_constants()

    def _make_constants(self) -> Constants | None:
        return self._setup.builder.first_constants([self._task.rows()]) if self.holds_constants else None

    @property
    def most(self) -> int:
        pairs = int(self._setup.engine.group.sum_(torch.tensor(len(self._task.known_labels()))))
        return max(1, pairs // self._setup.config.batches.steps)

    def groups(self, count: int) -> Groups:
        """Of the first views, for all are alike: pairs are dealt out at random."""
        reached = []
        for step, rows, _ in self._reached(count):
            sample = None if self._sample is None else self._sample(step, 0)
            reached.append(self._setup.builder.drawn_sizes(rows, sample, holds_constants=self.holds_constants))
        return Groups(np.zeros(0, np.int32), tuple(sizes for sizes, _ in reached), tuple(counts for _, counts in reached))

    def step_bytes(self, count: int) -> int:
        return max(self._task.step_bytes(scored) for _, _, scored in self._reached(count))

    def _reached(self, count: int) -> Iterator[tuple[int, np.ndarray, int]]:
        """Of the first views: the number of the step, own rows that pairs end in, and how many pairs are scored or asked for
        here. Some pairs at a time, for nobody knows yet whether there is room for all.
        """
        group, runs = self._setup.engine.group, self._setup.config.batches.steps * count
        run_of = deal(self._task.step_keys(0), runs, group)
        for run in range(min(runs, LOOKED_AT)):
            chosen, marked, counts = (
                np.flatnonzero(run_of == run),
                np.zeros(len(self._task.rows()), bool),
                np.zeros(2, np.int64),
            )
            most = max(int(pairs) for pairs in group.gather(torch.tensor(len(chosen))))
            for first in range(0, max(most, 1), _PAIRS):
                lists = self._task.batch(chosen[first : first + _PAIRS], run // count).lists
                marked[lists.rows()] = True
                counts += len(lists.heads), len(lists.back)
            yield run // count, np.flatnonzero(marked), int(counts.max())

    def steps(self, count: int) -> PairSteps:
        """Those of a run, with so many micro-batches each."""
        setup = self._setup
        if self._flows:
            setup.engine.pool.slack = SLACK
        return PairSteps(
            setup.builder,
            setup.engine.group,
            self._task,
            count=setup.config.batches.steps,
            batches=count,
            sample=self._sample,
            flows=self._flows,
            constants=(self._constants, self._make_constants),
        )


def write_pairs(
    task: Task, outputs: Tensor, schema: Schema, ids: np.ndarray, asked: dict[str, Any], write: Write
) -> dict[str, Any]:
    """Write what was asked for; all workers must call it together. Numbers are within node types.

    | file | |
    |---|---|
    | ``embeddings.npy`` | [nodes, F], in the order of original ids; of edges if asked for |
    | ``pair_scores.npy`` | [P], of edges [P, C], of the pairs of ``pairs=FILE``, in their order |
    | ``predictions.npy``, ``logits.npy`` | of edges: as those of nodes, in the order in which edges were given, by relation |
    | ``partners.npy`` | int64 [nodes of the relation's source type, K], the best partners, best first; -1: there are no more |
    | ``partner_scores.npy`` | [the same], their scores |

    Args:
        outputs: [N, F].
        ids: int64 [N], original ids.
        asked: ``embeddings``, whether they are wanted of edges, too; ``pairs``, a file; ``top``, K; ``relation``, its name;
            None or 0 for what is not wanted.

    Returns:
        How many edges have predictions; of links what ``evaluation.json`` holds.
    """
    assert isinstance(task, PairTask)
    more: dict[str, Any] = {"evaluation": task.judged(outputs)} if isinstance(task, LinkTask) else {}
    if asked["embeddings"] or isinstance(task, LinkTask):
        write(EMBEDDINGS, outputs, ids)
    if isinstance(task, EdgeTask):
        more["edges"] = task.total
        logits = task.logits(outputs, np.arange(len(task.numbers)))
        write(LOGITS, logits, task.numbers)
        write(PREDICTIONS, task.kind.predictions(logits), task.numbers)
    if not (asked["pairs"] or asked["top"]):
        return more
    number = relation_of(schema, asked["relation"])
    relation = schema.relations[number]
    begins = [schema.offsets[end] for end in (relation.source, relation.destination)]
    group = task.group
    if asked["pairs"]:
        pairs = read_pairs(Path(asked["pairs"]))
        first, last = (pairs.shape[1] * (group.rank + k) // group.world for k in (0, 1))
        most = -(-pairs.shape[1] // group.world)
        scores = []
        for at in range(first, first + max(most, 1), _PAIRS):
            heads, tails = (pairs[end, at : min(at + _PAIRS, last)] + begins[end] for end in (0, 1))
            scores.append(task.score(outputs, heads, tails, number))
        write(SCORES, torch.cat(scores), np.arange(first, last))
    if asked["top"] and isinstance(task, LinkTask):
        partners, best = task.partners(outputs, int(asked["top"]), number)
        own = ids[(ids >= begins[0]) & (ids < schema.offsets[relation.source + 1])] - begins[0]
        partners = torch.where(partners >= 0, partners - begins[1], partners)
        write(PARTNERS, partners, own)
        write(PARTNER_SCORES, best, own)
    return more
