"""A trainer's micro-batches, and the groups of its evaluation: as configured, or as fits the memory budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sargnn.batches.simple import group_in_order
from sargnn.batches.targets import TargetRows
from sargnn.config import RunConfig
from sargnn.data.dataset import SPLITS
from sargnn.errors import ConfigError
from sargnn.tracking.memory import human_bytes, resident_bytes, trim
from sargnn.training.account.record import Accounts
from sargnn.training.account.sizes import Groups, sizes_of_plans
from sargnn.training.batches import MicroBatches, find_groups, most_batches
from sargnn.training.budget import Budget

if TYPE_CHECKING:
    from sargnn.training.loop import Trainer

_MOST_EVALUATION_GROUPS = 256


def trains_in_batches(config: RunConfig) -> bool:
    """Whether a step has views of its own, made after all else was read in.

    Not with batch norm where the number is free: micro-batches would have statistics of their own.
    """
    return config.batches.count != 1 and not (config.batches.count == "auto" and config.norms_over_rows)


def fit_batches(
    trainer: Trainer, split: Tensor, scratch: Path | None, accounts: Callable[[], Accounts] | None
) -> None:  # fmt: skip
    """Give a trainer its micro-batches and evaluation groups; all ranks must call it together.

    Raises:
        ConfigError: more micro-batches than a worker has training nodes; nothing fits the budget.
    """
    config, engine, graph = trainer.config, trainer.engine, trainer.graph
    group, rows = engine.group, torch.nonzero(split == SPLITS["train"])[:, 0].numpy()
    apart = trainer.model.by_relation and graph.part.schema.typed  # plans of relations hold functions
    on_disk = config.batches.flows == "disk" and not apart
    folder = scratch / "flows" if scratch is not None and on_disk else None
    targets = TargetRows(graph.part, group.rank, rows, config.seed, config.prepare.bytes)
    micro = trains_in_batches(config)

    def make_groups(count: int) -> Groups:
        found = find_groups(config.batches, count, targets, group)
        return trainer.builder.groups_of(rows, found, count, holds_constants=trainer.builder.shares_constants)

    count, groups = config.batches.count, None
    if config.memory_budget is not None:
        assert accounts is not None
        if micro:
            make_groups(1)  # what it takes to look at edges is there before anything is measured
            graph.release()
            trim()
        resident = resident_bytes()
        budget = Budget(
            group, accounts(), config.budget_bytes, resident=resident, since=max(0, resident - trainer.meter.baseline_bytes),
            depth=trainer.model.num_kept, make_groups=make_groups, all_held=folder is None,
        )  # fmt: skip
        if not micro:
            _fit_view(trainer, budget)
        elif isinstance(count, int):
            trainer.planned_bytes = budget.planned(count, engine.keep_layers)
            if not budget.fits(trainer.planned_bytes, f"batches.count={count}"):
                raise budget.refusal(trainer.planned_bytes, f"{count} micro-batches need more than the memory budget.")
            groups = budget.groups(count)
        else:
            choice = budget.search(most_batches(targets, group), engine.keep_layers)
            count, groups, engine.keep_layers = choice.count, choice.groups, choice.keep_layers
            trainer.planned_bytes = choice.planned_bytes
        _fit_evaluation(trainer, budget, split, folder)
        trainer.remarks += budget.tried
    if micro:
        assert isinstance(count, int)
        found = find_groups(config.batches, count, targets, group) if groups is None else groups.of
        where = None if folder is None else folder / "training"
        trainer.batches = MicroBatches(trainer.builder, found, rows, count, len(graph.part.node_ids), group, where)
        if config.norms_over_rows and count > 1:
            trainer.remarks.append("each micro-batch has batch norms' statistics of its own: losses depend on batches.count")
    graph.release()
    engine.pool.reset()
    trim()


def _fit_view(trainer: Trainer, budget: Budget) -> None:
    """Keep fewer layers' inputs where the configuration's own view needs more than there is."""
    view, engine = trainer.batches[0], trainer.engine
    plans = view.flow.plans
    sizes = sizes_of_plans(plans, trainer.graph.num_rows, len(view.targets.rows["train"]))
    least: tuple[int, ...] = ()
    for keep in budget.keeps(engine.keep_layers):
        planned = budget.planned_view(sizes, [plan.counts for plan in plans], keep)
        least = planned if not least or max(planned) < max(least) else least
        if budget.fits(planned, f"engine.keep_layers={keep}"):
            engine.keep_layers, trainer.planned_bytes = keep, planned
            return
    if trainer.config.norms_over_rows and trainer.config.batches.count == "auto":
        budget.tell()
        raise ConfigError(
            "Nothing that changes no loss fits the memory budget: with batch norm micro-batches would change it.",
            given=f"memory_budget={trainer.config.memory_budget}; {human_bytes(max(least))} beside what is there already",
            hint="model.norm=layer or none, with which any number is exact; batches.count=K for that many; more workers",
        )  # fmt: skip
    raise budget.refusal(least, "A training step needs more than the memory budget.")


def _fit_evaluation(trainer: Trainer, budget: Budget, split: Tensor, folder: Path | None) -> None:
    """Evaluate in groups of rows where one piece needs more than there is."""
    plans = trainer.evaluation.flow.plans
    sizes = sizes_of_plans(plans, trainer.graph.num_rows, int((split > 0).sum()))
    states = 3 * sum(one.nbytes for one in trainer.parameters)  # gradients, and the optimizer's moments
    whole = budget.planned_whole_evaluation(sizes, [plan.counts for plan in plans], states)
    if budget.fits(whole, "evaluation in one piece"):
        return
    rows = torch.nonzero(split > 0)[:, 0].numpy()
    targets = TargetRows(trainer.graph.part, trainer.engine.group.rank, rows, 0, 0)
    out = trainer.output_bytes
    count, least = 2, whole
    while count <= _MOST_EVALUATION_GROUPS:
        groups = trainer.builder.groups_of(rows, group_in_order(targets, count), count, holds_constants=False)
        planned = budget.planned_evaluation(groups, states + 2 * len(rows) * out)  # outputs of groups, then of all together
        least = planned if max(planned) < max(least) else least
        if budget.fits(planned, f"evaluation in {count} groups"):
            where = None if folder is None else folder / "evaluation"
            trainer.evaluations = MicroBatches(
                trainer.builder, groups.of, rows, count, len(split), trainer.engine.group, where, recurring=False
            )
            return
        count *= 2
    raise budget.refusal(least, "An evaluation needs more than the memory budget, in any number of groups of rows.")
