"""The plan of a run whose steps are views: with the micro-batches and kept layers that it would choose for ``memory_budget``.

Letters: P workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.config.run import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.engine.segments import KeepLayers, layer_runs
from sargnn.errors import ConfigError
from sargnn.models.stack import Stack
from sargnn.planner.account import BEFORE_TRAINING, Account, Runtime, WorkerPlan
from sargnn.planner.views import Views
from sargnn.planner.wire import layer_bytes, shape_of
from sargnn.tracking.memory import human_bytes
from sargnn.training.fit import MOST_EVALUATION_GROUPS, trains_in_batches
from sargnn.training.search import Search, largest_micro_batch


@dataclass(frozen=True)
class ViewsPlan:
    """What workers hold and send.

    Attributes:
        workers: each one's memory. sent: bytes of an epoch, by all; None: not known.
        batches: micro-batches of a step; 1: none. keep_layers: whose inputs survive until backward.
        groups: of rows in which evaluations are computed.
    """

    workers: list[WorkerPlan]
    sent: int | None
    batches: int
    keep_layers: KeepLayers
    groups: int = 1


def plan_views(config: RunConfig, dataset: Dataset, assignment: np.ndarray, store: Path | None, runtime: Runtime) -> ViewsPlan:
    """The plan of every worker, with as many micro-batches as configured, or as the run would choose.

    Args:
        assignment: int32 [N], each node's owner. store: the partition's folder; None: it is not there.

    Raises:
        ConfigError: nothing fits ``memory_budget``; the model cannot work on such a graph.
    """
    shape = shape_of(dataset, config)
    account = Account(config, shape, dataset.num_nodes)
    views = Views(config, dataset, assignment, store, shape, account.engine, account.model)
    count, keep = 1, config.engine.keep_layers
    if trains_in_batches(config):
        given = config.batches.count
        if config.norms_over_rows and config.draws_flows and given == "auto":
            given = 1
        count = given if isinstance(given, int) else 1
        if config.budget_bytes is not None and given in (1, "auto"):
            fit = _Fit(account, views, runtime, config.budget_bytes)
            fitted = fit.find(1 if given == 1 else views.most_batches, keep)
            if not fitted.fits:
                needed = max(base + least for base, least in zip(fit.bases, fitted.planned_bytes, strict=True))
                raise _refusal(config, "No number of micro-batches fits the memory budget.", needed)
            count, keep = fitted.count, fitted.keep_layers
    parts = [views.part_sizes(rank) for rank in range(config.world)]
    own = [views.worker(rank, count) for rank in range(config.world)]
    workers = [account.with_views(part, worker_views, runtime, keep) for part, worker_views in zip(parts, own, strict=True)]
    groups = 1
    while config.budget_bytes is not None and max(map(_while_evaluating, workers)) > config.budget_bytes:
        groups *= 2
        if groups > MOST_EVALUATION_GROUPS or config.eval == "sampled":
            what = "An evaluation needs more than the memory budget, in any number of groups of rows."
            raise _refusal(config, what, max(map(_while_evaluating, workers)))
        chosen = views.evaluation_in_groups(groups)
        every = zip(parts, own, chosen, strict=True)
        workers = [account.with_views(part, worker_views, runtime, keep, some) for part, worker_views, some in every]
    return ViewsPlan(workers, _sent(config, account, views, count, keep), count, keep, groups)


def _while_evaluating(worker: WorkerPlan) -> int:
    """A worker's whole memory in an evaluation."""
    return sum(worker.terms[name] for name in BEFORE_TRAINING) + worker.evaluation


def _refusal(config: RunConfig, what: str, needed: int) -> ConfigError:
    return ConfigError(
        what,
        given=f"memory_budget={config.memory_budget.size}; the least that a worker needs is {human_bytes(needed)}",
        hint=f"more workers, world={2 * config.world}, hold less each; so does a smaller model.hidden",
    )


class _Fit(Search):
    """Micro-batches and kept layers of a run that has not been started.

    Attributes:
        bases: by worker, bytes that are there before training.
    """

    def __init__(self, account: Account, views: Views, runtime: Runtime, limit: int) -> None:
        super().__init__(account.model.num_kept)
        self._account, self._views, self._limit, self._runtime = account, views, limit, runtime
        self._parts = [views.part_sizes(rank) for rank in range(views.parts.world)]
        self.bases = [account.before_training(part, views.worker(rank, 1), runtime) for rank, part in enumerate(self._parts)]

    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        planned_bytes = []
        for rank, part in enumerate(self._parts):
            own = self._views.worker(rank, count)
            most = largest_micro_batch(
                self._account.accounts,
                [view.sizes for view in own.training],
                [view.counts for view in own.training],
                keep,
                constants=self._account.holds_constants,
                all_held=self._account.all_held,
            )
            planned_bytes.append(most + self._runtime.training + self._account.bytes_since(part, own))
        return tuple(planned_bytes)

    def fits(self, planned: Sequence[int], what: str) -> bool:
        return max(base + own for base, own in zip(self.bases, planned, strict=True)) <= self._limit


def _sent(config: RunConfig, account: Account, views: Views, count: int, keep: KeepLayers) -> int | None:
    """Bytes of rows that all workers send in an epoch, evaluations left out; None: flows are drawn, or rows travel anew for
    layers that are computed again."""
    model = account.model
    if (
        not isinstance(model, Stack)
        or config.draws_flows
        or not views.training(count)[0]
        or (config.may_preload and model.inputs.sharded())
    ):
        return None
    total, caches = 0, not trains_in_batches(config)
    again = [index for run in layer_runs(len(model.graph_layers), keep)[:-1] for index in run]
    for ranks in views.parts.servers:
        for view in views.training(count)[ranks.start]:
            every = zip(model.graph_layers, view.counts, view.messages, strict=True)
            for index, (layer, counts, messages) in enumerate(every):
                if not layer.uses_edges:
                    continue
                own = layer_bytes(account.engine, layer, counts, account.label_columns, messages, caches=caches)
                if own and index in again:
                    return None
                total += own
    return total
