"""The search for micro-batches and kept layers that fit, for whoever can say what so many hold (Yang et al., ASPLOS 2023, 4.4).

The number of micro-batches is doubled until the account of the largest one fits on every worker, or hardly gains any more, then
bisected. Where no number fits, or where a norm over rows forbids micro-batches that nobody has asked for, fewer layers' inputs
are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sargnn.engine.segments import KeepLayers
from sargnn.shards.plan import RowCounts
from sargnn.training.account.record import Accounts
from sargnn.training.account.sizes import Sizes
from sargnn.training.account.step import StepAccount

_FEW = 6
"""Of up to so many layers every number is tried, of more the square root too."""
_GAINS = 0.97
"""Twice as many micro-batches that need more than this share of what half as many do are the last that are tried."""


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        count: micro-batches. keep_layers: whose inputs survive. planned_bytes: per rank, above what was there when training
            started; where nothing fits, the least that was tried.
        fits: whether that fits.
    """

    count: int
    keep_layers: KeepLayers
    planned_bytes: tuple[int, ...]
    fits: bool


class Search(ABC):
    """Finds what fits.

    Args:
        depth: of the model, whose layers may be kept.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth

    @abstractmethod
    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        """Per rank, what training holds at most above its baseline with so many micro-batches."""

    @abstractmethod
    def fits(self, planned: Sequence[int], what: str) -> bool:
        """Whether every rank has room for it. ``what``: as a person would configure it."""

    def keeps(self, configured: KeepLayers) -> Iterator[KeepLayers]:
        """What may be tried: what is configured, then fewer and fewer layers' inputs."""
        yield configured
        if configured == "all" and self._depth > 2:
            yield from range(min(self._depth, _FEW) - 1, 1, -1)
            if self._depth > _FEW:
                yield "sqrt"

    def find(self, most: int, configured: KeepLayers) -> Found:
        """As few micro-batches as fit, at most ``most``; kept layers only where none do."""
        least: Found | None = None
        for keep in self.keeps(configured):
            count, below, before = 1, 0, 0
            while True:
                planned = self.planned(count, keep)
                if least is None or max(planned) < max(least.planned_bytes):
                    least = Found(count, keep, planned, fits=False)
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
            return Found(count, keep, planned, fits=True)
        assert least is not None
        return least


def words_for(count: int, keep: KeepLayers) -> str:
    """The settings of so many micro-batches and kept layers."""
    batches = f"batches.count={count}"
    return batches if keep == "all" else f"{batches} engine.keep_layers={keep}"


def largest_micro_batch(
    accounts: Accounts,
    sizes: Sequence[Sizes],
    counts: Sequence[Sequence[RowCounts | None]],
    keep: KeepLayers,
    *,
    constants: bool,
    all_held: bool,
) -> int:
    """What training on micro-batches holds at most on one rank, bytes above its baseline.

    Args:
        sizes: of each on this rank. counts: of each, per layer over all workers, by which layers choose what they do first.
        constants: whether they have the first layer's aggregates of constant rows. all_held: their flows stay in memory.
    """
    accounts_of = [
        accounts.step(layer_counts, micro_batches=True, keep_layers=keep, constants=constants) for layer_counts in counts
    ]
    return largest_of(accounts_of, sizes, all_held=all_held)


def largest_of(accounts: Sequence[StepAccount], sizes: Sequence[Sizes], *, all_held: bool) -> int:
    """The most that views hold, those of one account one after the other; the arguments as of ``largest_micro_batch``."""
    return max(account.peak(own, all_held=all_held) for account, own in alike(accounts, sizes))


def alike(accounts: Sequence[StepAccount], sizes: Sequence[Sizes]) -> list[tuple[StepAccount, list[Sizes]]]:
    """Each account with the views that it is of."""
    by_account: dict[int, tuple[StepAccount, list[Sizes]]] = {}
    for account, view_sizes in zip(accounts, sizes, strict=True):
        by_account.setdefault(id(account), (account, []))[1].append(view_sizes)
    return list(by_account.values())
