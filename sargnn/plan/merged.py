"""Where own and halo rows lie side by side, for modes that work on one merged graph.

Type by type: the own rows first, then the peers' in rank order. So the rows of one type are a run, and those of a
homogeneous graph are the own rows followed by all halo rows, as they arrive.

Letters: N own rows, H halo rows, T node types, P workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MergedRows:
    """The layout of [N + H] merged rows.

    Attributes:
        bounds: T + 1, the merged rows of each type.
        own: (first merged row, first own row, length) per type.
        halo: (first merged row, first halo row, length) per type and peer; halo rows go by peer in rank order, each by type.
    """

    bounds: tuple[int, ...]
    own: tuple[tuple[int, int, int], ...]
    halo: tuple[tuple[int, int, int], ...]

    @classmethod
    def lay_out(cls, row_bounds: Sequence[int], halo_bounds: Sequence[Sequence[int]]) -> MergedRows:
        """Lay the rows out.

        Args:
            row_bounds: T + 1, the own rows of each type.
            halo_bounds: per peer T + 1, where its halo rows of each type begin among all halo rows.
        """
        bounds: list[int] = [0]
        own: list[tuple[int, int, int]] = []
        halo: list[tuple[int, int, int]] = []
        for t in range(len(row_bounds) - 1):
            at = bounds[-1]
            for pieces, first, last in (
                (own, row_bounds[t], row_bounds[t + 1]),
                *((halo, peer[t], peer[t + 1]) for peer in halo_bounds),
            ):
                pieces.append((at, first, last - first))
                at += last - first
            bounds.append(at)
        return cls(tuple(bounds), tuple(own), tuple(halo))

    @property
    def in_order(self) -> bool:
        """Whether the halo rows lie in one run behind the own rows."""
        return len(self.bounds) == 2

    def room_for_halo(self, merged: Tensor) -> Tensor:
        """[H, F] to receive halo rows into, by peer: a part of ``merged`` [N + H, F] if they lie there in that order."""
        own, halo = (sum(n for *_, n in pieces) for pieces in (self.own, self.halo))
        return merged[own:] if self.in_order else merged.new_empty(halo, merged.shape[1])

    def fill(self, merged: Tensor, own: Tensor, halo: Tensor) -> None:
        """Put own rows [N, F] and halo rows [H, F], as ``room_for_halo`` gave them, into ``merged``."""
        for at, first, n in self.own:
            merged[at : at + n] = own[first : first + n]
        if not self.in_order:
            for at, first, n in self.halo:
                merged[at : at + n] = halo[first : first + n]

    def by_type(self, own: Tensor, halo: Tensor) -> tuple[Tensor, ...]:
        """Per type the merged rows, [own + halo rows of the type, F], in memory of their own."""
        joined = []
        for t, (_, first, n) in enumerate(self.own):
            pieces = self.halo[t * self._peers : (t + 1) * self._peers]
            joined.append(torch.cat([own[first : first + n], *(halo[a : a + k] for _, a, k in pieces)]))
        return tuple(joined)

    def own_part(self, tables: Sequence[Tensor]) -> Tensor:
        """[N, F]: the own rows of merged rows given type by type, in memory of their own."""
        return torch.cat([tables[t][:n] for t, (_, _, n) in enumerate(self.own)])

    def halo_part(self, tables: Sequence[Tensor]) -> Tensor:
        """[H, F], by peer: the halo rows of merged rows given type by type."""
        if self.in_order:
            return tables[0][self.own[0][2] :]
        out = tables[0].new_empty(sum(n for *_, n in self.halo), tables[0].shape[1])
        for number, (at, first, n) in enumerate(self.halo):
            t = number // self._peers
            out[first : first + n] = tables[t][at - self.bounds[t] : at - self.bounds[t] + n]
        return out

    def split(self, merged: Tensor) -> tuple[Tensor, ...]:
        """``merged`` [N + H, F] type by type, without copies."""
        return tuple(merged[a:b] for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    @property
    def _peers(self) -> int:
        return len(self.halo) // len(self.own)
