"""The account of a step: what its views hold at most on this worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sargnn.training.account.replay import Held, replay
from sargnn.training.account.sizes import Sizes
from sargnn.training.account.trace import Event

LIBRARIES_BYTES = 22 << 20
"""What libraries take when they first run, and what lies between small allocations: measured, as the rest of runs' peaks."""


@dataclass(frozen=True)
class HaloBytes:
    """What halo rows take, per row: of a layer until backward is over, while the layer runs, and in the exchange's buffers.

    Attributes:
        most_rows: rows of a message. buffers: messages that are held at one time.
    """

    kept: tuple[int, ...]
    running: tuple[int, ...]
    travelling: tuple[int, ...]
    most_rows: int
    buffers: int

    def peak(self, halo: Sequence[int]) -> int:
        """Bytes at most. ``halo``: per layer, halo rows."""
        running = (
            rows * own + self.buffers * min(rows, self.most_rows) * travels
            for rows, own, travels in zip(halo, self.running, self.travelling, strict=True)
        )
        return sum(rows * own for rows, own in zip(halo, self.kept, strict=True)) + max(running, default=0)


@dataclass(frozen=True)
class StepAccount:
    """Two epochs of a step of one view, recorded on the made-up graph.

    Attributes:
        events: of both epochs. made_up: the view's sizes. constant_bytes: of a row of what the view brings; 0: nothing.
        halo: what halo rows take, which the made-up graph has not.
        holds_flow: whether the plans are there only while the view is computed; else they were there before.
    """

    events: tuple[Event, ...]
    made_up: Sizes
    constant_bytes: int
    halo: HaloBytes
    holds_flow: bool

    def brought(self, sizes: Sizes) -> int:
        """Bytes of what a view holds by itself: its plans and its constants."""
        return sizes.flow_bytes + sizes.counts["out", 0, -1] * self.constant_bytes if self.holds_flow else 0

    def peak(self, views: Sequence[Sizes], *, all_held: bool = False) -> int:
        """Bytes that steps of these views hold at most, beyond what was there when training started.

        Args:
            views: of the micro-batches. all_held: all of them are in memory, not only the one at hand.
        """
        held, halo = self.held(views, all_held=all_held)
        return held.peak + halo + LIBRARIES_BYTES

    def held(self, views: Sequence[Sizes], *, all_held: bool = False) -> tuple[Held, int]:
        """What they hold at the peak, and bytes of halo rows beside it."""
        held, halo = Held(), 0
        for _ in range(2):  # the second time with what the pool holds from the first
            for sizes in views:
                held.other += (brought := sum(map(self.brought, views)) if all_held else self.brought(sizes))
                replay(self.events, self.made_up, sizes, held)
                held.end()
                held.other -= brought
                halo = max(halo, self.halo.peak(sizes.halo))
        return held, halo
