"""How the rows of several tensors stand in one flat message.

Letters: N rows, F features.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Column(NamedTuple):
    """One tensor of a message: rows of ``width`` numbers.

    Attributes:
        dtype: that it is computed with. exact: it is never rounded on its way.
    """

    width: int
    dtype: torch.dtype
    exact: bool = False


Columns = tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    """How the rows of several tensors [N, F_t] stand in one flat message: one table after the other, the widest dtype first.

    Attributes:
        widths, dtypes: of each tensor's rows as they travel. held: the dtypes that the tensors have.
    """

    widths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    held: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], wire: torch.dtype | None = None, exact: Container[int] = ()) -> Layout:
        """``wire``: what fp32 rows are rounded to on their way, but for the tensors ``exact``; None: nothing is."""
        return cls.of_columns([Column(tensor.shape[1], tensor.dtype, t in exact) for t, tensor in enumerate(tensors)], wire)

    @classmethod
    def of_columns(cls, columns: Sequence[Column], wire: torch.dtype | None = None) -> Layout:
        """The same for tensors that are not there yet."""
        travel = tuple(travels_as(column, wire) for column in columns)
        return cls(tuple(column.width for column in columns), travel, tuple(column.dtype for column in columns))

    @property
    def row_bytes(self) -> int:
        """Of a row of all tensors, as it travels."""
        return sum(width * dtype.itemsize for width, dtype in zip(self.widths, self.dtypes, strict=True))

    @property
    def unit(self) -> torch.dtype:
        """A message is counted in elements of the narrowest."""
        return min(self.dtypes, key=lambda dtype: dtype.itemsize)

    @property
    def width(self) -> int:
        """Of a row of all tensors, in units."""
        return sum(width * dtype.itemsize for width, dtype in zip(self.widths, self.dtypes, strict=True)) // self.unit.itemsize

    @property
    def rounds(self) -> bool:
        """Whether anything travels in another dtype than it is held in."""
        return self.dtypes != self.held

    @property
    def rounded_width(self) -> int:
        """Of a row of what does."""
        return sum(width for width, *both in zip(self.widths, self.dtypes, self.held, strict=True) if both[0] != both[1])

    def sections(self, message: Tensor, rows: int) -> tuple[Tensor, ...]:
        """Contiguous [rows, F_t] views of a message, one for each tensor. The message is counted in units, or in bytes."""
        if len(self.widths) == 1:
            return (message.view(self.dtypes[0]).view(rows, self.widths[0]),)
        sections, start = {}, 0
        for t in sorted(range(len(self.widths)), key=lambda t: -self.dtypes[t].itemsize):  # each begins where its dtype may
            numel = rows * self.widths[t] * (self.dtypes[t].itemsize // message.element_size())
            sections[t] = message[start : start + numel].view(self.dtypes[t]).view(rows, self.widths[t])
            start += numel
        return tuple(sections[t] for t in range(len(self.widths)))

    def wide(self, sections: Sequence[Tensor], room: Tensor | None = None) -> tuple[Tensor, ...]:
        """Where what the sections of a message hold is computed with: in the dtypes that the tensors have. Nothing is copied.

        Args:
            room: at least rows x ``rounded_width`` numbers; memory of their own if not given.
        """
        out, start = [], 0
        for section, dtype in zip(sections, self.held, strict=True):
            if section.dtype == dtype:
                out.append(section)
            elif room is None:
                out.append(torch.empty(section.shape, dtype=dtype, device=section.device))
            else:
                out.append(room[start : start + section.numel()].view(section.shape))
                start += section.numel()
        return tuple(out)


def travels_as(column: Column, wire: torch.dtype | None) -> torch.dtype:
    """The dtype of a column on its way."""
    return column.dtype if wire is None or column.exact or column.dtype != torch.float32 else wire


def copy_sections(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """What is the same tensor on both sides stays."""
    for source, target in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source)
