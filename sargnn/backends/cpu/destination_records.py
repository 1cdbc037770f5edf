"""What attention's backward pass reads of each destination, side by side in one record, compiled.

Letters: M destination rows, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import numba
import torch
from torch import Tensor

from sargnn.backends.cpu.attention_vector_code import RECORD
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import array_of, wide, widen


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_records(er: Any, max_score: Any, denominator: Any, grad: Any, out: Any, records: Any) -> None:  # pragma: no cover
    """What backward reads of each destination: ``records[i] = (er_i, m_i, 1 / s_i, <grad_i, out_i> per head)``.

    Args:
        er, max_score, denominator: [M, K]. grad, out: [M, K D], may be bf16.
        records: [M, 4 K]. Destinations without edges, s = 0, get 0 for 1 / s.
    """
    heads = er.shape[1]
    width = grad.shape[1] // heads
    zero, unit = er.dtype.type(0), er.dtype.type(1)
    for i in numba.prange(er.shape[0]):
        record = records[i]
        record[:heads] = er[i]
        record[heads : 2 * heads] = max_score[i]
        for h in range(heads):
            record[2 * heads + h] = unit / denominator[i, h] if denominator[i, h] != zero else zero
            g, row = grad[i, h * width : (h + 1) * width], out[i, h * width : (h + 1) * width]
            record[3 * heads + h] = dot(g, row, zero)


@numba.njit(fastmath={"reassoc", "contract"})
def dot(x: Any, y: Any, start: Any) -> Any:  # pragma: no cover
    """``start + <x, y>``, in the type of ``start``."""
    total = start
    for f in range(len(x)):
        total += widen(x[f]) * widen(y[f])
    return total


def destination_records(er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
    """``AttentionOperation.destination_records`` in one compiled pass."""
    own = torch.zeros_like(running.max_score) if er is None else er
    records = own.new_empty(len(own), RECORD * own.shape[1])
    tensors = (own, running.max_score, running.denominator, grad, running.out, records)
    _write_records(*(array_of(tensor) for tensor in tensors))
    return records


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    rows, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    return [(_write_records, (x, x, x, rows, rows, x))]
