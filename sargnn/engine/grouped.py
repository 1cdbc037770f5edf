"""An aggregation's output that stays in the groups of columns in which it was made (``engine.columns``).

Who reads it joins it in the moment in which it is read, in a table that goes when it was read. So what waits for other ranks,
as for the statistics of a batch norm, is not written to disk a second time where the pool spills: the groups lie there already.

Letters: M output rows, F columns, F_g those of a group, T node types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Rows
from sargnn.backends.memory import Pool
from sargnn.engine.row_norm import type_runs
from sargnn.plan.layer_plan import LayerPlan

Given = list[Callable[[], Tensor]]


@dataclass(frozen=True)
class Grouped:
    """An output [M, F] in groups of its columns.

    Attributes:
        stand_in: [M, F], what autograd knows of it; it has one number only, which says nothing.
        groups: what gives the table [M, F_g] of each group, in the order of columns.
        moments: fp64 [T, 2 F + 1], of the rows of each type what ``Rows.moments`` gives; None: they were not taken.
    """

    stand_in: Tensor
    groups: Given
    moments: Tensor | None = None

    def __len__(self) -> int:
        return len(self.stand_in)

    @property
    def shape(self) -> torch.Size:
        return self.stand_in.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.stand_in.dtype

    @property
    def device(self) -> torch.device:
        return self.stand_in.device

    def together(self, pool: Pool) -> Tensor:
        """[M, F], in a table of its own, without autograd."""
        return put_together(pool, list(self.groups), self.shape[1])

    def joined(self, pool: Pool) -> Tensor:
        """As ``together``, differentiable."""
        out: Tensor = _Join.apply(self.stand_in, self, pool)
        return out


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, grouped: Grouped, pool: Pool) -> Tensor:
        return grouped.together(pool)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None, None


@dataclass
class Outputs:
    """Where an aggregation in groups leaves its outputs.

    Attributes:
        takes_moments: of each group while it is in memory, for a batch norm behind it.
        groups: of each output.
    """

    takes_moments: bool = False
    groups: list[Given] = field(default_factory=list)
    _moments: list[Tensor] = field(default_factory=list)
    _shapes: list[tuple[int, int]] = field(default_factory=list)
    _like: list[Tensor] = field(default_factory=list)

    def add(self, pool: Pool, tables: Sequence[Tensor], rows: Rows, plan: LayerPlan) -> None:
        """The next group's, [M, F_g] each."""
        if not self.groups:
            self.groups = [[] for _ in tables]
            self._shapes = [(len(table), 0) for table in tables]
            self._like = [table.new_zeros(1, 1) for table in tables]
        if self.takes_moments:
            self._moments.append(own_moments(tables[0], rows, plan.out_bounds, plan.counted))
        for number, table in enumerate(tables):
            self.groups[number].append(pool.keep(table))
            self._shapes[number] = len(table), self._shapes[number][1] + table.shape[1]

    def stand_ins(self) -> tuple[Tensor, ...]:
        """What stands for the outputs in autograd."""
        return tuple(like.expand(shape) for like, shape in zip(self._like, self._shapes, strict=True))

    def grouped(self, stand_ins: Sequence[Tensor]) -> tuple[Grouped, ...]:
        """``stand_ins``: as autograd has made them. What was left here is not held here any more."""
        moments = side_by_side(self._moments) if self._moments else None
        groups, self.groups = self.groups, []
        return tuple(Grouped(stand_in, own, moments) for stand_in, own in zip(stand_ins, groups, strict=True))


def put_together(pool: Pool, groups: Given, width: int, room: Tensor | None = None) -> Tensor:
    """[M, F] of the tables of groups, in ``room`` if there is some. Takes them out of ``groups``, so that each is free once it
    was copied.
    """
    first = 0
    while groups:
        columns = groups.pop(0)()
        if room is None:
            room = pool.empty(len(columns), width, columns)
        room[:, first : first + columns.shape[1]] = columns
        first += columns.shape[1]
        del columns
    assert room is not None and first == width
    return room


def own_moments(x: Tensor, rows: Rows, bounds: tuple[int, ...], counted: Tensor | None) -> Tensor:
    """fp64 [T, 2 F + 1], of the rows of each type what ``Rows.moments`` gives.

    Args:
        x: [M, F].
        bounds: T + 1, the rows of each type.
        counted: uint8 [M], 1 for rows that count; None: all do.
    """
    own = torch.zeros(len(bounds) - 1, 2 * x.shape[1] + 1, dtype=torch.float64, device=x.device)
    for t, run in type_runs(bounds):
        own[t] = rows.moments(x[run], None if counted is None else counted[run])
    return own


def side_by_side(moments: Sequence[Tensor]) -> Tensor:
    """Of groups of columns those of all of them: number, means, sums of squared deviations."""
    middle = [(of_group.shape[1] + 1) // 2 for of_group in moments]
    means = [of_group[:, 1:at] for of_group, at in zip(moments, middle, strict=True)]
    squares = [of_group[:, at:] for of_group, at in zip(moments, middle, strict=True)]
    return torch.cat([moments[0][:, :1], *means, *squares], 1)
