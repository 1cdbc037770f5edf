"""Degrees of a layer's output rows, or sums of edge weights, by relation.

Letters: M output rows, M_r those of relation r's destination type, R relations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightSums:
    """Sums of the weights of the edges that a plan's degrees count; an added self-loop's is 1.

    Attributes:
        inward: fp64 [M].
        outward: fp64 [N]; of a sample without entries where nothing reads them.
        by_relation: per relation fp64, into each output row of its destination type.
    """

    inward: Tensor
    outward: Tensor
    by_relation: Sequence[Tensor]


@dataclass(frozen=True)
class OfRelations(Sequence[Tensor]):
    """A number for each relation and output row of its destination type, [M_r] of each. What is held is of the rows that have
    such edges: no more numbers than there are edges, where a table for each relation would have R M.

    Attributes:
        lengths: M_r.
        starts: R + 1, where each relation's rows begin.
        rows: int32, ascending in each relation, numbered within the type.
        values: of these rows; 0 for the others.
    """

    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    rows: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, relation: Any) -> Any:
        return self.run(relation, slice(0, self.lengths[relation]))

    def run(self, relation: int, run: slice) -> Tensor:
        """Of a run of the rows of the relation's destination type."""
        here, count = slice(self.starts[relation], self.starts[relation + 1]), run.stop - run.start
        if not count:  # as of a type that is left out
            return self.values[:0]
        if count != self.lengths[relation]:
            first, last = torch.searchsorted(self.rows[here], self.rows.new_tensor([run.start, run.stop])).tolist()
            here = slice(here.start + first, here.start + last)
        table = self.values.new_zeros(count)
        return table.index_copy_(0, self.rows[here].long() - run.start, self.values[here])

    @classmethod
    def of(cls, tables: Iterable[np.ndarray], device: torch.device) -> OfRelations:
        """From the numbers of each relation's rows, [M_r] each, 0 where there are no edges."""
        lengths, starts, rows, values = list[int](), [0], [np.zeros(0, np.int32)], list[np.ndarray]()
        for table in tables:
            rows.append(np.flatnonzero(table).astype(np.int32))
            values.append(table[rows[-1]])
            lengths.append(len(table))
            starts.append(starts[-1] + len(rows[-1]))
        held = (torch.from_numpy(np.concatenate(arrays)).to(device) for arrays in (rows, values))
        return cls(tuple(lengths), tuple(starts), *held)

    def only(self, relations: Collection[int]) -> OfRelations:
        """Without rows of other relations."""
        return dataclasses.replace(self, lengths=tuple(n if r in relations else 0 for r, n in enumerate(self.lengths)))
