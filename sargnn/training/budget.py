"""Micro-batches and kept layers that fit a worker's memory, found by all ranks of a run before its first step
(``training.search``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sargnn.comm.group import Group
from sargnn.engine.segments import KeepLayers
from sargnn.errors import ConfigError
from sargnn.shards.plan import RowCounts
from sargnn.tracking.memory import human_bytes
from sargnn.training.account.record import Accounts
from sargnn.training.account.sizes import Groups, Sizes
from sargnn.training.search import Search, largest_micro_batch, largest_of

BETWEEN_BYTES = 8 << 20
"""What lies between small allocations of a step, and what libraries take of a large step beside a small one: measured, as the
rest of runs' peaks."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        count: micro-batches; 1: none. groups: None where the configuration's own view is trained.
        planned_bytes: per rank, above what was there when training started.
        tried: lines for a person.
    """

    count: int
    keep_layers: KeepLayers
    groups: Groups | None
    planned_bytes: tuple[int, ...]
    tried: tuple[str, ...]


class Budget(Search):
    """Finds what fits. All ranks must make one, and call its methods, together.

    Args:
        bytes: a worker's whole resident memory; None: no limit.
        resident: of this rank, before training. since: of this, what has come since training's baseline.
        depth: of the model, whose layers may be kept.
        make_groups: gives the groups for a number of micro-batches. constants: whether these have aggregates of constant rows.
    """

    def __init__(
        self,
        group: Group,
        accounts: Accounts,
        bytes: int | None,
        *,
        resident: int,
        since: int,
        depth: int,
        make_groups: Callable[[int], Groups],
        all_held: bool,
        constants: bool,
    ) -> None:
        super().__init__(depth)
        self._group, self._accounts, self._bytes = group, accounts, bytes
        self._resident, self._since = resident, since
        self._make_groups, self._all_held, self._constants = make_groups, all_held, constants
        self._made: dict[int, Groups] = {}
        self.tried: list[str] = []

    def groups(self, count: int) -> Groups:
        """The groups for a number of micro-batches; made once."""
        if count not in self._made:
            self._made[count] = self._make_groups(count)
        return self._made[count]

    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        """Per rank, what training holds at most above its baseline with so many micro-batches."""
        groups = self.groups(count)
        largest = largest_micro_batch(
            self._accounts, groups.sizes, groups.counts, keep, constants=self._constants, all_held=self._all_held
        )
        return self._everyone(largest)

    def planned_evaluation(self, groups: Groups, outputs: int) -> tuple[int, ...]:
        """Per rank, what an evaluation in groups holds at most above training's baseline, with ``outputs`` bytes of all."""
        accounts = [self._accounts.evaluation(layer_counts, in_groups=True) for layer_counts in groups.counts]
        largest = largest_of(accounts, groups.sizes, all_held=self._all_held)
        return self._everyone(largest + outputs)

    def planned_whole_evaluation(self, sizes: Sizes, counts: Sequence[RowCounts | None], states: int) -> tuple[int, ...]:
        """The same of an evaluation in one piece, with ``states`` bytes of what training leaves."""
        return self._everyone(self._accounts.evaluation(counts, in_groups=False).peak([sizes]) + states)

    def planned_view(self, sizes: Sizes, counts: Sequence[RowCounts | None], keep: KeepLayers) -> tuple[int, ...]:
        """The same of the configuration's own view."""
        account = self._accounts.step(counts, micro_batches=False, keep_layers=keep)
        return self._everyone(account.peak([sizes]))

    def _everyone(self, planned: int) -> tuple[int, ...]:
        gathered = self._group.gather(torch.tensor(planned + self._since + BETWEEN_BYTES, dtype=torch.int64))
        return tuple(int(rank_bytes) for rank_bytes in gathered)

    def fits(self, planned: Sequence[int], what: str) -> bool:
        """Whether every rank has room for it."""
        bases = [
            int(rank_bytes) for rank_bytes in self._group.gather(torch.tensor(self._resident - self._since, dtype=torch.int64))
        ]
        total = max(base + own for base, own in zip(bases, planned, strict=True))
        fits = self._bytes is None or total <= self._bytes
        verdict = "" if self._bytes is None else ", fits" if fits else ", too much"
        self.tried.append(f"{what}: {human_bytes(max(planned))} for training, {human_bytes(total)} in all{verdict}")
        return fits

    def search(self, most: int, configured: KeepLayers) -> Choice:
        """As few micro-batches as fit, at most ``most``; kept layers only where none do.

        Raises:
            ConfigError: nothing fits.
        """
        best = self.find(most, configured)
        if not best.fits:
            raise self.refusal(best.planned_bytes, "No number of micro-batches fits the memory budget.")
        return Choice(best.count, best.keep_layers, self.groups(best.count), best.planned_bytes, tuple(self.tried))

    def tell(self) -> None:
        """Print what was tried, for the log."""
        for line in self.tried if self._group.rank == 0 else ():
            print(line, flush=True)

    def refusal(self, least: Sequence[int], what: str) -> ConfigError:
        """Nothing fits. ``least``: per rank, the least that was tried. ``what``: of what, a sentence."""
        self.tell()
        base = self._group.gather(torch.tensor(self._resident - self._since, dtype=torch.int64))
        needed = max((int(rank_bytes) + own for rank_bytes, own in zip(base, least, strict=True)), default=0)
        assert self._bytes is not None
        return ConfigError(
            what,
            given=f"memory_budget={human_bytes(self._bytes)}; the least that a worker needs is {human_bytes(needed)}, of which "
            f"{human_bytes(max(int(rank_bytes) for rank_bytes in base))} are there before training",
            hint=f"memory_budget={-(-needed * 21 // 20 // 100_000_000) / 10}GB; more workers, world={2 * self._group.world}, "
            "hold less each; so does a smaller model.hidden",
        )
