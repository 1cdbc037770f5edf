"""A run's steps and micro-batches, and the groups of its evaluation: as configured, or as is chosen for a memory budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor

from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.engine.segments import KeepLayers
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.sizes import Groups
from sargnn.tasks.base import Task
from sargnn.tracking.memory import PeakMeter, trim
from sargnn.training.optim import Optimization
from sargnn.training.steps import DrawnSteps, MicroBatches, OneStep, StepRows, Steps, find_groups, most_batches
from sargnn.training.views import Constants, View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.plan.drawn import Sample
    from sargnn.training.pairs import PairCandidates
    from sargnn.training.queries import QueryCandidates

_LAST_SAMPLE = 2**32 - 1
"""The number of the sample that evaluations read, which no step comes to."""
SLACK = 1 / 8
"""Of memory for tables whose rows are others in every step."""
_PIECES = 8
"""In which constant aggregates are computed for many steps."""
LOOKED_AT = 3
"""Steps of the first epoch whose sizes are planned with."""


def trains_in_batches(config: RunConfig) -> bool:
    """Whether a step has views of its own, made after all else was read in.

    Not with batch norm where the number of micro-batches is free: they would have statistics of their own.
    """
    if config.draws_flows or config.asks_queries:
        return True
    return config.batches.count != 1 and not (config.batches.count == "auto" and config.norms_over_rows)


def draws_views(config: RunConfig) -> bool:
    """Whether a step's views are made before each step: where flows are drawn, and of pairs, which draw negatives."""
    return config.draws_flows or (config.predicts_pairs and trains_in_batches(config))


def configured_batches(config: RunConfig) -> int | Literal["auto"]:
    """Micro-batches of a step; ``auto``: as many as memory asks for, where no number changes a loss."""
    return 1 if config.norms_over_rows and config.draws_flows and config.batches.count == "auto" else config.batches.count


def sample_numbered(config: RunConfig, model: Model, number: int) -> Sample:
    """One of the run's samples, with the fan-outs of the model's layers."""
    from sargnn.plan.drawn import Sample

    left = list(config.sample.fanouts or ())
    fanouts = tuple(left.pop(0) if aggregates else -1 for aggregates in model.uses_edges)
    return Sample(fanouts, config.seed, number)


def sampler(config: RunConfig, model: Model) -> Callable[[int, int], Sample]:
    """Gives a step's sample, for its number since the run's beginning and its epoch."""
    return lambda step, epoch: sample_numbered(config, model, {"step": step, "epoch": epoch, "run": 0}[config.sample.every])


def holds_constants(config: RunConfig, model: Model, engine: Engine) -> bool:
    """Whether micro-batches and drawn steps have the first layer's aggregates of constant rows in common.

    Not where a sampled step leaves out the edges of links that it scores, even if it keeps all others.
    """
    if config.samples and (config.predicts_links or sample_numbered(config, model, 0).fanouts[0] != -1):
        return False
    return model.shares_constants(engine)


def evaluation_sample(config: RunConfig, model: Model) -> Sample:
    """The one that all evaluations read: with ``sample.every=run`` that of training."""
    return sample_numbered(config, model, 0 if config.sample.every == "run" else _LAST_SAMPLE)


@dataclass(frozen=True)
class Choice:
    """What of a run fits its memory budget (``sargnn.memory.budget``).

    Attributes:
        count: micro-batches of a step; ``groups``: these; None: the configuration's own view is trained.
        evaluation: groups of rows in which evaluations are computed; None: they are in one piece.
        planned_bytes: per rank what training holds at most, above what was there when it started.
        tried: lines for a person.
    """

    count: int
    keep_layers: KeepLayers
    groups: Groups | None
    evaluation: Groups | None
    planned_bytes: tuple[int, ...]
    tried: list[str]


@dataclass(frozen=True)
class Setup:
    """What a worker trains with, before there are steps. ``ids``: int64 [N], original ids, on the host. ``evaluation``: the
    view that evaluations read. ``meter``: of memory peaks, above what is there now.
    """

    config: RunConfig
    model: Model
    engine: Engine
    graph: WorkerGraph
    ids: Tensor
    task: Task
    builder: ViewBuilder
    evaluation: View
    optimization: Optimization
    meter: PeakMeter


Choose = Callable[[Setup, "Candidates", View | None], Choice]
"""Chooses what fits the budget, from what a worker trains with, the micro-batches that could be, and the configuration's own
view of a step where it has that. All ranks call it together; it raises ``ConfigError`` where nothing fits."""
Budget = Callable[[GraphShape], Choose]


@dataclass
class Fitted:
    """The steps of a run, as they fit; the views whose outputs an evaluation measures together; and, where that was asked for,
    what training is to hold at most per rank, in bytes, and what was tried for it.
    """

    steps: Steps
    evaluations: Sequence[View] | MicroBatches
    planned_bytes: tuple[int, ...] | None = None
    remarks: Sequence[str] = ()


def fit_steps(setup: Setup, training: View | None, scratch: Path | None, choose: Choose | None) -> Fitted:
    """Make the steps, micro-batches and evaluation groups of a run; all ranks must call it together.

    Args:
        training: the configuration's own view of a step; None: steps have views that are made here.
        scratch: a folder of this rank's alone, for what lies on disk meanwhile; None: nothing does.
        choose: what fits the memory budget; not called without one.

    Raises:
        ConfigError: more micro-batches than a worker has training nodes; nothing fits the budget.
    """
    config, engine, graph, builder, group = setup.config, setup.engine, setup.graph, setup.builder, setup.engine.group
    fitted = Fitted(OneStep([] if training is None else [training]), [setup.evaluation])
    if training is not None and config.budget_bytes is None and not config.predicts_pairs:
        return fitted
    apart = setup.model.by_relation and graph.part.schema.typed  # plans of relations hold functions
    on_disk = config.batches.flows == "disk" and not apart
    folder = scratch / "flows" if scratch is not None and on_disk else None
    candidates: NodeCandidates | PairCandidates | QueryCandidates
    if config.asks_queries:  # others do not load what predicts pairs
        from sargnn.training.queries import QueryCandidates

        candidates = QueryCandidates(setup)
    elif config.predicts_pairs:
        from sargnn.training.pairs import PairCandidates

        candidates = PairCandidates(setup)
    else:
        candidates = NodeCandidates(setup, all_held=folder is None and not config.draws_flows)
    count, groups = configured_batches(config), None
    if config.budget_bytes is not None:
        assert choose is not None
        choice = choose(setup, candidates, training)
        count, groups, engine.keep_layers = choice.count, choice.groups, choice.keep_layers
        fitted.planned_bytes, fitted.remarks = choice.planned_bytes, choice.tried
        if (evaluation := choice.evaluation) is not None:
            evaluated, where = setup.task.rows(), None if folder is None else folder / "evaluation"
            number = len(evaluation.sizes)
            fitted.evaluations = MicroBatches(
                builder, evaluation.of, evaluated, number, graph.num_rows, group, where, recurring=False
            )
    if not isinstance(candidates, NodeCandidates):
        batches = count if isinstance(count, int) else 1
        fitted.steps = candidates.steps(batches)
        if (evaluations := candidates.evaluations(batches)) is not None:
            fitted.evaluations = evaluations
    elif trains_in_batches(config):
        assert isinstance(count, int)
        row_groups = find_groups(config.batches, count, candidates.targets, group) if groups is None else groups.of
        if config.draws_flows:
            engine.pool.slack = SLACK
            steps = candidates.drawn_steps(row_groups, count, constants=True)

            def views_anew() -> list[View]:
                steps.remake()
                return [steps.only_view()]

            always = count == steps.count == 1 and config.sample.every == "run"
            fitted.steps = OneStep([steps.only_view()], views_anew) if always else steps
        else:
            where = None if folder is None else folder / "training"
            fitted.steps = OneStep(MicroBatches(builder, row_groups, candidates.rows, count, graph.num_rows, group, where))
    _give_back(setup)
    return fitted


def _give_back(setup: Setup) -> None:
    """What making steps took, before the first of them."""
    drawn = draws_views(setup.config)
    if drawn:
        _ = setup.graph.drawer  # made now: what making it takes is not held beside a step
    setup.graph.release(mapped_only=drawn)
    setup.engine.reset_tables()
    trim()


class Candidates(ABC):
    """The micro-batches that a step could have, before any are made.

    Attributes:
        all_held: whether all their flows stay in memory.
        holds_constants: whether they have the first layer's aggregates of constant rows in common.
    """

    all_held: bool
    holds_constants: bool

    @property
    @abstractmethod
    def most(self) -> int:
        """All ranks must ask."""

    @abstractmethod
    def groups(self, count: int) -> Groups:
        """So many groups, and what each reaches; of drawn steps in each of the first steps. All ranks must call it."""

    def step_bytes(self, count: int) -> int:
        """Of a view of a step of so many, on this rank, beside its rows. All ranks must call it."""
        return 0

    def queries(self, count: int) -> tuple[int, int]:
        """What a view of a step of so many asks, and one of an evaluation; 0: nothing is asked."""
        return 0, 0

    def evaluations(self, count: int) -> Sequence[View] | None:
        """The views of an evaluation, where a step has so many; None: the configuration's own, or groups of its rows."""
        return None


class NodeCandidates(Candidates):
    """Of a task whose targets are rows.

    Attributes:
        rows: int64 ascending, own training rows.
        constants: the first layer's aggregates of constant rows, made where drawn steps share them.
    """

    def __init__(self, setup: Setup, *, all_held: bool) -> None:
        from sargnn.plan.target_groups import TargetRows

        config, graph = setup.config, setup.graph
        self._setup, self.all_held = setup, all_held
        self.rows = setup.task.rows("train")
        self.targets = TargetRows(graph.part, graph.rank, self.rows, config.seed, config.prepare.bytes)
        self.holds_constants = holds_constants(config, setup.model, setup.engine)
        self.constants: Constants | None = None
        self._steps: DrawnSteps | None = None
        if config.draws_flows:
            self._steps = self.drawn_steps(np.zeros(len(self.rows), np.int32), 1)
            self.constants = self._make_constants()

    @property
    def most(self) -> int:
        return most_batches(self.targets, self._setup.engine.group)

    def groups(self, count: int) -> Groups:
        builder = self._setup.builder
        row_groups = find_groups(self._setup.config.batches, count, self.targets, self._setup.engine.group)
        if self._steps is None:
            return builder.groups_of(self.rows, row_groups, count, holds_constants=self.holds_constants)
        steps = self.drawn_steps(row_groups, count)
        reached = [
            builder.drawn_sizes(steps.group_rows(step, number), steps.sample_of(step), holds_constants=self.holds_constants)
            for step in range(min(steps.count, LOOKED_AT))
            for number in steps.numbers(step)
        ]
        return Groups(row_groups, tuple(sizes for sizes, _ in reached), tuple(counts for _, counts in reached))

    def drawn_steps(self, groups: np.ndarray, count: int, *, constants: bool = False) -> DrawnSteps:
        """Steps with so many micro-batches. ``constants``: they have those that are there."""
        setup, config = self._setup, self._setup.config
        return DrawnSteps(
            setup.builder,
            setup.engine.group,
            setup.task,
            StepRows(self.rows, setup.ids.numpy()[self.rows], groups, count),
            count=config.batches.steps,
            seed=config.seed,
            sample=sampler(config, setup.model) if config.samples else None,
            constants=(self.constants, self._make_constants) if constants else None,
        )

    def _make_constants(self) -> Constants | None:
        """Of all rows that a step may compute, in a few pieces; all ranks must call it."""
        if not self.holds_constants:
            return None
        pieces = np.array_split(self.rows, min(self._setup.config.batches.steps, _PIECES))
        constants = self._setup.builder.first_constants(pieces)
        self._setup.graph.release(mapped_only=True)
        return constants
