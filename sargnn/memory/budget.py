"""How many micro-batches and kept layers fit a worker's memory, for whoever can say what so many hold (Betty, Yang et al.,
ASPLOS 2023, 4.4): here for all ranks of a run before its first step, in ``plan_run`` for one that has not been started.

The number of micro-batches is doubled until the account of the largest one fits on every worker, or hardly gains any more, then
bisected. Fewer layers' inputs are kept where no number fits, or a norm over rows forbids micro-batches that nobody asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.engine.segments import KeepLayers
from sargnn.errors import ConfigError
from sargnn.memory.account_record import Accounts
from sargnn.memory.account_step import StepAccount
from sargnn.models.inputs import GraphShape
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.sizes import Groups, Sizes, sizes_of_plans
from sargnn.plan.target_groups import TargetRows, group_in_order
from sargnn.tracking.memory import human_bytes, resident_bytes, trim
from sargnn.training.fit import Candidates, Choice, Choose, Setup, configured_batches, trains_in_batches
from sargnn.training.views import View

BETWEEN_BYTES = 8 << 20
"""Measured: what lies between small allocations, and what libraries take of a large step beside a small one."""
MOST_EVALUATION_GROUPS = 256
_FEW = 6
"""Of up to so many layers every number is tried, of more the square root too."""
_GAINS = 0.97
"""Doubling ends where twice as many micro-batches need more than this share of the memory."""


@dataclass(frozen=True)
class Fit:
    """What a search came to. ``planned_bytes``: per rank, above training's baseline; of the least if nothing fits."""

    count: int
    keep_layers: KeepLayers
    planned_bytes: tuple[int, ...]
    fits: bool


class Search(ABC):
    def __init__(self, depth: int) -> None:
        self._depth = depth

    @abstractmethod
    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        """Per rank, bytes that training holds at most above its baseline with so many micro-batches."""

    @abstractmethod
    def fits(self, planned: Sequence[int], what: str) -> bool:
        """Whether every rank has room for it. ``what``: as a person would configure it."""

    def keeps(self, configured: KeepLayers) -> Iterator[KeepLayers]:
        """What is configured, then fewer and fewer layers' inputs."""
        yield configured
        if configured == "all" and self._depth > 2:
            yield from range(min(self._depth, _FEW) - 1, 1, -1)
            if self._depth > _FEW:
                yield "sqrt"

    def find(self, most: int, configured: KeepLayers) -> Fit:
        """As few micro-batches as fit, at most ``most``; fewer kept layers only where none do."""
        least: Fit | None = None
        for keep in self.keeps(configured):
            count, below, before = 1, 0, 0
            while True:
                planned = self.planned(count, keep)
                if least is None or max(planned) < max(least.planned_bytes):
                    least = Fit(count, keep, planned, fits=False)
                fits = self.fits(planned, words_for(count, keep))
                if fits or count == most or max(planned) > _GAINS * before > 0:
                    break
                below, before, count = count, max(planned), min(2 * count, most)
            if not fits:
                continue
            while count - below > 1:
                middle = (count + below) // 2
                between = self.planned(middle, keep)
                if self.fits(between, words_for(middle, keep)):
                    count, planned = middle, between
                else:
                    below = middle
            return Fit(count, keep, planned, fits=True)
        assert least is not None
        return least


def words_for(count: int, keep: KeepLayers) -> str:
    batches = f"batches.count={count}"
    return batches if keep == "all" else f"{batches} engine.keep_layers={keep}"


def largest_of(accounts: Sequence[StepAccount], sizes: Sequence[Sizes], *, all_held: bool) -> int:
    """The most that views hold, those of one account one after the other. ``all_held``: as of ``StepAccount.peak``."""
    return max(account.peak(own, all_held=all_held) for account, own in alike(accounts, sizes))


def alike(accounts: Sequence[StepAccount], sizes: Sequence[Sizes]) -> list[tuple[StepAccount, list[Sizes]]]:
    """Each account with the views that it is of."""
    by_account: dict[int, tuple[StepAccount, list[Sizes]]] = {}
    for account, view_sizes in zip(accounts, sizes, strict=True):
        by_account.setdefault(id(account), (account, []))[1].append(view_sizes)
    return list(by_account.values())


class Budget(Search):
    """Finds what fits the ranks of a run. All ranks must make one, and call its methods, together.

    Args:
        limit: a worker's whole resident memory, bytes; None: there is no limit.
        resident: bytes of this rank that are there before training.
        since: of these, what has come since training's baseline.
        candidates: micro-batches that there could be; None: none.
    """

    def __init__(
        self,
        group: Group,
        accounts: Accounts,
        limit: int | None,
        resident: int,
        since: int,
        depth: int,
        candidates: Candidates | None = None,
    ) -> None:
        super().__init__(depth)
        self._group, self._accounts, self._limit, self._since = group, accounts, limit, since
        self._bases = self._gather(resident - since)
        self._candidates = candidates
        self._made: dict[int, Groups] = {}
        self.tried: list[str] = []

    def groups(self, count: int) -> Groups:
        assert self._candidates is not None
        if count not in self._made:
            self._made[count] = self._candidates.groups(count)
        return self._made[count]

    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        assert self._candidates is not None
        groups, constants = self.groups(count), self._candidates.holds_constants
        queries, _ = self._candidates.queries(count)
        accounts = [
            self._accounts.step(counts, micro_batches=True, keep_layers=keep, constants=constants, queries=queries)
            for counts in groups.counts
        ]
        held = largest_of(accounts, groups.sizes, all_held=self._candidates.all_held)
        return self.everyone(held + self._candidates.step_bytes(count))

    def planned_view(self, sizes: Sizes, counts: Sequence[RowCounts | None], keep: KeepLayers) -> tuple[int, ...]:
        """As ``planned``, of the configuration's own view."""
        held = self._accounts.step(counts, micro_batches=False, keep_layers=keep).peak([sizes])
        return self.everyone(held + (self._candidates.step_bytes(1) if self._candidates is not None else 0))

    def everyone(self, planned: int) -> tuple[int, ...]:
        """Per rank, what is planned of it, with what there is beside an account."""
        return self._gather(planned + self._since + BETWEEN_BYTES)

    def _gather(self, own: int) -> tuple[int, ...]:
        return tuple(int(of_rank) for of_rank in self._group.gather(torch.tensor(own, dtype=torch.int64)))

    def fits(self, planned: Sequence[int], what: str) -> bool:
        total = max(base + own for base, own in zip(self._bases, planned, strict=True))
        fits = self._limit is None or total <= self._limit
        verdict = "" if self._limit is None else ", fits" if fits else ", too much"
        self.tried.append(f"{what}: {human_bytes(max(planned))} for training, {human_bytes(total)} in all{verdict}")
        return fits

    def tell(self) -> None:
        for line in self.tried if self._group.rank == 0 else ():
            print(line, flush=True)

    def refusal(self, least: Sequence[int], what: str) -> ConfigError:
        """The error where nothing fits. ``least``: per rank, the least that was tried. ``what`` does not fit: a sentence."""
        self.tell()
        needed = max((base + own for base, own in zip(self._bases, least, strict=True)), default=0)
        assert self._limit is not None
        return ConfigError(
            what,
            given=f"memory_budget={human_bytes(self._limit)}; the least that a worker needs is {human_bytes(needed)}, of which "
            f"{human_bytes(max(self._bases))} are there before training",
            hint=f"memory_budget={-(-needed * 21 // 20 // 100_000_000) / 10}GB; more workers, world={2 * self._group.world}, "
            "hold less each; so does a smaller model.hidden",
        )


def chooser(shape: GraphShape) -> Choose:
    """What chooses for a run on such a graph (``training.build.make_trainer``)."""
    return partial(_choose, shape)


def _choose(shape: GraphShape, setup: Setup, candidates: Candidates, training: View | None) -> Choice:
    config, engine, batched = setup.config, setup.engine, trains_in_batches(setup.config)
    accounts = Accounts(config, shape, setup.model, setup.graph.message_rows)
    accounts.load_libraries()
    if batched:
        candidates.groups(1)  # what it takes to look at edges is there before anything is measured
        setup.graph.release()
    trim()
    resident = resident_bytes()
    since = max(0, resident - setup.meter.baseline_bytes)
    budget = Budget(engine.group, accounts, config.budget_bytes, resident, since, setup.model.num_kept, candidates)
    count, keep = configured_batches(config), engine.keep_layers
    if not batched:
        assert training is not None
        fit = _fit_view(setup, training, budget)
    elif count in (1, "auto"):  # 1: as configured, or the only exact number; then fewer layers are kept
        fit = budget.find(1 if count == 1 else candidates.most, keep)
        if not fit.fits:
            raise budget.refusal(fit.planned_bytes, "No number of micro-batches fits the memory budget.")
    else:
        assert isinstance(count, int)
        fit = Fit(count, keep, budget.planned(count, keep), fits=True)
        if not budget.fits(fit.planned_bytes, f"batches.count={count}"):
            raise budget.refusal(fit.planned_bytes, f"{count} micro-batches need more than the memory budget.")
    groups = budget.groups(fit.count) if batched else None
    evaluation = _fit_evaluation(setup, budget, accounts, candidates, fit.count)
    return Choice(fit.count, fit.keep_layers, groups, evaluation, fit.planned_bytes, budget.tried)


def _fit_view(setup: Setup, view: View, budget: Budget) -> Fit:
    """Keep fewer layers' inputs where the configuration's own view needs more than there is."""
    config, plans = setup.config, view.flow.plans
    sizes = sizes_of_plans(plans, setup.graph.num_rows, len(view.targets.rows.get("train", ())))
    least: tuple[int, ...] = ()
    for keep in budget.keeps(setup.engine.keep_layers):
        planned = budget.planned_view(sizes, [plan.counts for plan in plans], keep)
        least = planned if not least or max(planned) < max(least) else least
        if budget.fits(planned, f"engine.keep_layers={keep}"):
            return Fit(1, keep, planned, fits=True)
    if config.norms_over_rows and config.batches.count == "auto":
        budget.tell()
        # A module of the user's has no setting of its norm.
        other = "" if config.model.reads_target else "model.norm=layer or none, with which any number is exact; "
        raise ConfigError(
            "Nothing that changes no loss fits the memory budget: with batch norm micro-batches would change it.",
            given=f"memory_budget={config.memory_budget.size}; {human_bytes(max(least))} beside what is there already",
            hint=f"{other}batches.count=K for that many; more workers",
        )
    raise budget.refusal(least, "A training step needs more than the memory budget.")


def _fit_evaluation(setup: Setup, budget: Budget, accounts: Accounts, candidates: Candidates, batches: int) -> Groups | None:
    """Groups of rows where one piece needs more than there is; else None. ``batches``: micro-batches of a step."""
    plans, graph, rows = setup.evaluation.flow.plans, setup.graph, setup.task.rows()
    _, queries = candidates.queries(batches)
    sizes = sizes_of_plans(plans, graph.num_rows, len(rows))
    states = setup.config.optim.tables * sum(parameter.nbytes for parameter in setup.optimization.parameters)
    states += setup.task.evaluation_bytes()
    whole = accounts.evaluation([plan.counts for plan in plans], in_groups=False, queries=queries)
    least = budget.everyone(whole.peak([sizes]) + states)
    if budget.fits(least, "evaluation in one piece"):
        return None
    if queries:
        raise budget.refusal(least, "An evaluation needs more than the memory budget.")
    if not setup.model.takes_flows:
        what = "An evaluation needs more than the memory budget, and only a module that asks for graph.blocks has it in groups."
        raise budget.refusal(least, what)
    if setup.config.eval == "sampled":
        raise budget.refusal(least, "An evaluation on a sample needs more than the memory budget.")
    targets, count = TargetRows(graph.part, graph.rank, rows, 0, 0), 2
    row_bytes = setup.task.outputs * wide(setup.engine.dtype).itemsize
    outputs = states + 2 * len(rows) * row_bytes  # of groups, then of all together
    while count <= MOST_EVALUATION_GROUPS:
        groups = setup.builder.groups_of(rows, group_in_order(targets, count), count, holds_constants=False)
        in_groups = [accounts.evaluation(layer_counts, in_groups=True) for layer_counts in groups.counts]
        planned = budget.everyone(largest_of(in_groups, groups.sizes, all_held=candidates.all_held) + outputs)
        least = planned if max(planned) < max(least) else least
        if budget.fits(planned, f"evaluation in {count} groups"):
            return groups
        count *= 2
    raise budget.refusal(least, "An evaluation needs more than the memory budget, in any number of groups of rows.")
