"""A trainer's steps and micro-batches, and the groups of its evaluation: as configured, or as fits the memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sargnn.batches.simple import group_in_order
from sargnn.batches.targets import TargetRows
from sargnn.bf16 import wide
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.models.base import Model
from sargnn.shards.in_edges import Sample
from sargnn.tracking.memory import human_bytes, resident_bytes, trim
from sargnn.training.account.record import Accounts
from sargnn.training.account.sizes import Groups, sizes_of_plans
from sargnn.training.batches import MicroBatches, find_groups, most_batches
from sargnn.training.budget import Budget
from sargnn.training.steps import DrawnSteps, OneStep, Steps
from sargnn.training.views import Constants, View

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer

MOST_EVALUATION_GROUPS = 256
_LAST_SAMPLE = 2**32 - 1
"""The number of the sample that evaluations read, which no step comes to."""
_SLACK = 1 / 8
"""Of memory for tables whose rows are others in every step."""
_PIECES = 8
"""In which constant aggregates are computed for many steps."""
LOOKED_AT = 3
"""Steps of the first epoch whose sizes are planned with."""


def trains_in_batches(config: RunConfig) -> bool:
    """Whether a step has views of its own, made after all else was read in.

    Not with batch norm where the number of micro-batches is free: they would have statistics of their own.
    """
    if config.draws_flows:
        return True
    return config.batches.count != 1 and not (config.batches.count == "auto" and config.norms_over_rows)


def sample_numbered(config: RunConfig, model: Model, number: int) -> Sample:
    """One of the run's samples, with the fan-outs of the model's layers."""
    left = list(config.sample.fanouts or ())
    fanouts = tuple(left.pop(0) if aggregates else -1 for aggregates in model.uses_edges)
    return Sample(fanouts, config.seed, number)


def evaluation_sample(config: RunConfig, model: Model) -> Sample:
    """The one that all evaluations read: with ``sample.every=run`` that of training."""
    return sample_numbered(config, model, 0 if config.sample.every == "run" else _LAST_SAMPLE)


@dataclass
class Fitted:
    """What a trainer's run is made of.

    Attributes:
        steps: the steps of an epoch.
        evaluations: the views whose outputs an evaluation measures together.
        planned_bytes: per rank what training is to hold at most, where that was asked for.
        remarks: what was tried for the memory budget.
    """

    steps: Steps
    evaluations: Sequence[View] | MicroBatches
    planned_bytes: tuple[int, ...] | None = None
    remarks: list[str] = field(default_factory=list)


def fit_steps(trainer: Trainer, training: View | None, scratch: Path | None, accounts: Callable[[], Accounts] | None) -> Fitted:
    """Make the steps, micro-batches and evaluation groups of a trainer that has all else; all ranks must call it together.

    Args:
        training: the configuration's own view of a step; None: steps have views that are made here.

    Raises:
        ConfigError: more micro-batches than a worker has training nodes; nothing fits the budget.
    """
    config, engine, graph = trainer.config, trainer.engine, trainer.graph
    fitted = Fitted(OneStep([] if training is None else [training]), [trainer.evaluation])
    if training is not None and config.budget_bytes is None:
        return fitted
    group, rows = engine.group, trainer.task.rows("train")
    apart = trainer.model.by_relation and graph.part.schema.typed  # plans of relations hold functions
    on_disk = config.batches.flows == "disk" and not apart
    folder = scratch / "flows" if scratch is not None and on_disk else None
    targets = TargetRows(graph.part, graph.rank, rows, config.seed, config.prepare.bytes)
    batched, planner = trains_in_batches(config), _Planner(trainer, rows, targets)
    count, keep = config.batches.count, engine.keep_layers
    if config.norms_over_rows and config.draws_flows and count == "auto":
        count = 1
    groups = None
    if config.budget_bytes is not None:
        assert accounts is not None
        every = accounts()
        every.load_libraries()
        if batched:
            planner.groups(1)  # what it takes to look at edges is there before anything is measured
            graph.release()
        trim()
        resident = resident_bytes()
        held = folder is None and not config.draws_flows
        budget = Budget(
            group,
            every,
            config.budget_bytes,
            resident=resident,
            since=max(0, resident - trainer.meter.baseline_bytes),
            depth=trainer.model.num_kept,
            make_groups=planner.groups,
            all_held=held,
            constants=planner.holds_constants,
        )
        if not batched:
            assert training is not None
            fitted.planned_bytes = _fit_view(trainer, training, budget)
        elif count == 1:  # as many as configured, or the only exact number: then fewer layers are kept
            choice = budget.search(1, keep)
            groups, engine.keep_layers, fitted.planned_bytes = choice.groups, choice.keep_layers, choice.planned_bytes
        elif isinstance(count, int):
            fitted.planned_bytes = budget.planned(count, keep)
            if not budget.fits(fitted.planned_bytes, f"batches.count={count}"):
                raise budget.refusal(fitted.planned_bytes, f"{count} micro-batches need more than the memory budget.")
            groups = budget.groups(count)
        else:
            choice = budget.search(most_batches(targets, group), keep)
            count, groups, engine.keep_layers = choice.count, choice.groups, choice.keep_layers
            fitted.planned_bytes = choice.planned_bytes
        fitted.evaluations = _fit_evaluation(trainer, budget, folder)
        fitted.remarks += budget.tried
    if batched:
        assert isinstance(count, int)
        row_groups = find_groups(config.batches, count, targets, group) if groups is None else groups.of
        if config.draws_flows:
            engine.pool.slack = _SLACK
            steps = _drawn_steps(trainer, rows, row_groups, count, planner)
            always = count == steps.count == 1 and config.sample.every == "run"
            fitted.steps = OneStep([steps.only_view()], lambda: _anew(steps)) if always else steps
        else:
            where = None if folder is None else folder / "training"
            batches = MicroBatches(trainer.builder, row_groups, rows, count, len(graph.part.node_ids), group, where)
            fitted.steps = OneStep(batches)
    if config.draws_flows:
        _ = graph.drawer  # made now: what making it takes is not held beside a step
    graph.release(mapped_only=config.draws_flows)
    engine.pool.reset()
    trim()
    return fitted


def _anew(steps: DrawnSteps) -> list[View]:
    """The only view, with constants computed anew."""
    steps.remake()
    return [steps.only_view()]


class _Planner:
    """What there is to know of a trainer's micro-batches before they are made.

    Args:
        rows: int64 ascending, own training rows. targets: the same.

    Attributes:
        constants: the first layer's aggregates, made where drawn steps share them.
        holds_constants: whether micro-batches have such.
    """

    def __init__(self, trainer: Trainer, rows: np.ndarray, targets: TargetRows) -> None:
        self._trainer, self._rows, self._targets = trainer, rows, targets
        config, self.constants = trainer.config, None
        self.holds_constants = trainer.builder.shares_constants
        self._steps: DrawnSteps | None = None
        if not config.draws_flows:
            return
        whole = sample_numbered(config, trainer.model, 0).fanouts[0] == -1 if config.samples else True
        self.holds_constants &= whole
        self._steps = _drawn_steps(trainer, rows, np.zeros(len(rows), np.int32), 1)
        if self.holds_constants:
            self.constants = self.make_constants()

    def make_constants(self) -> Constants | None:
        """Of all rows that a step may compute, in a few pieces; all ranks must call it."""
        if not self.holds_constants:
            return None
        pieces = np.array_split(self._rows, min(self._trainer.config.batches.steps, _PIECES))
        constants = self._trainer.builder.first_constants(pieces)
        self._trainer.graph.release(mapped_only=True)
        return constants

    def groups(self, count: int) -> Groups:
        """So many groups, and what each reaches; of drawn steps in each of the first steps. All ranks must call it."""
        trainer = self._trainer
        row_groups = find_groups(trainer.config.batches, count, self._targets, trainer.engine.group)
        if self._steps is None:
            return trainer.builder.groups_of(self._rows, row_groups, count, holds_constants=self.holds_constants)
        steps = _drawn_steps(trainer, self._rows, row_groups, count)
        sizes, counts = [], []
        for step in range(min(steps.count, LOOKED_AT)):
            for number in steps.numbers(step):
                size, rows = trainer.builder.drawn_sizes(
                    steps.group_rows(step, number), steps.sample_of(step), holds_constants=self.holds_constants
                )
                sizes.append(size)
                counts.append(rows)
        return Groups(row_groups, tuple(sizes), tuple(counts))


def _drawn_steps(
    trainer: Trainer, rows: np.ndarray, groups: np.ndarray, count: int, planner: _Planner | None = None
) -> DrawnSteps:
    config, model = trainer.config, trainer.model

    def sample(step: int, epoch: int) -> Sample:
        return sample_numbered(config, model, {"step": step, "epoch": epoch, "run": 0}[config.sample.every])

    return DrawnSteps(
        trainer.builder,
        trainer.engine.group,
        trainer.task,
        rows,
        trainer.ids.numpy()[rows],
        groups,
        count,
        count=config.batches.steps,
        seed=config.seed,
        sample=sample if config.samples else None,
        constants=None if planner is None else planner.constants,
        again=None if planner is None else planner.make_constants,
    )


def _fit_view(trainer: Trainer, view: View, budget: Budget) -> tuple[int, ...]:
    """Keep fewer layers' inputs where the configuration's own view needs more than there is; what is planned then."""
    engine = trainer.engine
    plans = view.flow.plans
    sizes = sizes_of_plans(plans, trainer.graph.num_rows, len(view.targets.rows["train"]))
    least: tuple[int, ...] = ()
    for keep in budget.keeps(engine.keep_layers):
        planned = budget.planned_view(sizes, [plan.counts for plan in plans], keep)
        least = planned if not least or max(planned) < max(least) else least
        if budget.fits(planned, f"engine.keep_layers={keep}"):
            engine.keep_layers = keep
            return planned
    if trainer.config.norms_over_rows and trainer.config.batches.count == "auto":
        budget.tell()
        raise ConfigError(
            "Nothing that changes no loss fits the memory budget: with batch norm micro-batches would change it.",
            given=f"memory_budget={trainer.config.memory_budget.size}; {human_bytes(max(least))} beside what is there already",
            hint=f"{_other_norm(trainer.config)}batches.count=K for that many; more workers",
        )
    raise budget.refusal(least, "A training step needs more than the memory budget.")


def _other_norm(config: RunConfig) -> str:
    """A module of the user's has no such setting."""
    return "" if config.model.reads_target else "model.norm=layer or none, with which any number is exact; "


def _fit_evaluation(trainer: Trainer, budget: Budget, folder: Path | None) -> Sequence[View] | MicroBatches:
    """Evaluate in groups of rows where one piece needs more than there is."""
    plans = trainer.evaluation.flow.plans
    rows = trainer.task.rows()
    sizes = sizes_of_plans(plans, trainer.graph.num_rows, len(rows))
    states = 3 * sum(p.nbytes for p in trainer.optimization.parameters)  # gradients, and the optimizer's moments
    whole = budget.planned_whole_evaluation(sizes, [plan.counts for plan in plans], states)
    if budget.fits(whole, "evaluation in one piece"):
        return [trainer.evaluation]
    if not trainer.model.takes_flows:
        what = "An evaluation needs more than the memory budget, and only a module that asks for graph.blocks has it in groups."
        raise budget.refusal(whole, what)
    if trainer.config.eval == "sampled":
        raise budget.refusal(whole, "An evaluation on a sample needs more than the memory budget.")
    targets = TargetRows(trainer.graph.part, trainer.graph.rank, rows, 0, 0)
    out = trainer.task.outputs * wide(trainer.engine.dtype).itemsize
    count, least = 2, whole
    while count <= MOST_EVALUATION_GROUPS:
        groups = trainer.builder.groups_of(rows, group_in_order(targets, count), count, holds_constants=False)
        planned = budget.planned_evaluation(groups, states + 2 * len(rows) * out)  # outputs of groups, then of all together
        least = planned if max(planned) < max(least) else least
        if budget.fits(planned, f"evaluation in {count} groups"):
            where = None if folder is None else folder / "evaluation"
            return MicroBatches(
                trainer.builder, groups.of, rows, count, trainer.graph.num_rows, trainer.engine.group, where, recurring=False
            )
        count *= 2
    raise budget.refusal(least, "An evaluation needs more than the memory budget, in any number of groups of rows.")
