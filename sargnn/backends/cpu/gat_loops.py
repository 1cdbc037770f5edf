"""Fused graph attention on a CPU, compiled with Numba: nothing of size edges x heads is stored unless scores are kept.

    x_ji = LeakyReLU(el_j + er_i)       a_ji = exp(x_ji - m_i) / s_i       out_i = sum over j -> i of r_ji a_ji z_j

r_ji is attention dropout's factor, drawn by the original ids of the edge's ends, 1 without dropout, times the edge's weight if
there are weights. It stands outside the softmax, so gradients hold for any r. Forward walks destinations,
a batch of edges at a time through ``edge_softmax``; out is normalised at all times, so the softmax goes on from shard to shard
without a closing pass. Backward walks sources, one row of z and its gradient at a time:

    d z_j = sum of r a g_i      d el_j = sum of d x      d er_i = sum of d x      d x = a (r <g_i, z_j> - delta_i) LeakyReLU'

with delta_i = <g_i, out_i> per head. Sources are cut into one lane per thread with equal edges, and every lane has room of
its own for d er: two runs with the same number of threads give the same bits.

Letters: S source rows, M destination rows, B and A of them listed, E edges, K heads, D head width, T lanes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_vector_code import (
    edge_softmax,
    edge_weights,
    fold_rows,
    gradient_rows,
    kept_weights,
    row_of,
    score_gradients,
)
from sargnn.backends.cpu.edge_dropout import drop_edge, words_of
from sargnn.bf16 import array_of, narrow, number, wide, widen

BATCH = 256
"""Edges whose weights are held at a time."""


@numba.njit(inline="always")
def weigh_edges(weight: Any, out: Any, edge_weight: Any, start: Any, end: Any) -> None:  # pragma: no cover - compiled
    """``out[e - start, :] = edge_weight[e] * weight[e - start, :]`` for e in [start, end), number by number: no temporary."""
    for e in range(start, end):
        factor = edge_weight[e]
        for h in range(weight.shape[1]):
            out[e - start, h] = weight[e - start, h] * factor


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_attention(
    chunks: Any,
    rows: Any,
    indptr: Any,
    indices: Any,
    z: Any,
    el: Any,
    er: Any,
    slope: Any,
    heads: Any,
    source_ids: Any,
    destination_ids: Any,
    draw: Any,
    keep: Any,
    edge_weight: Any,
    scores: Any,
    out: Any,
    max_score: Any,
    denominator: Any,
) -> None:  # pragma: no cover - compiled
    """Fold a block's edges into the running softmax of every listed destination.

    Args:
        chunks: int64, boundaries of runs of listed rows with about equal edges. rows: int32 [A]; empty: row a itself.
        indptr: int32 [A + 1]. indices: int32 [E].
        z: [S, K D], may be bf16; all else is fp32 then. el: [S, K]. er: [M, K]. slope: of LeakyReLU.
        source_ids: int64 [S], destination_ids: int64 [M].
        draw, keep: see ``edge_dropout.drop_edge``; a threshold of 0 drops nothing.
        edge_weight: [E], in the order of ``indices``; empty: 1.
        scores: [E, K], overwritten with x_ji; empty: they are not kept.
        out: [M, K D]; rows whose ``denominator`` is 0 are overwritten.
        max_score, denominator: [M, K], so far.
    """
    item, width, kinds = el.itemsize, z.shape[1] // heads, (z.dtype.type(0), out.dtype.type(0))
    everything = len(rows) == 0
    limit = np.int64(len(indices))
    dropping, weighted = draw[3] > 0, len(edge_weight) > 0
    kept_at = np.int64(scores.ctypes.data) if len(scores) > 0 else np.int64(0)
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), el.dtype)
        factor, carry = np.empty(heads, el.dtype), np.empty(heads, el.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds = np.int64(denominator[i, 0] != 0)
                edge_softmax(
                    (
                        weight.ctypes.data,
                        el.ctypes.data,
                        indices.ctypes.data,
                        start,
                        end,
                        limit,
                        heads,
                        er.ctypes.data + i * heads * item,
                        kept_at,
                        max_score.ctypes.data + i * heads * item,
                        denominator.ctypes.data + i * heads * item,
                        factor.ctypes.data,
                        carry.ctypes.data,
                    ),
                    slope,
                )
                if dropping:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(weight[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                if weighted:
                    weigh_edges(weight, weight, edge_weight, start, end)
                fold_rows(
                    (
                        out.ctypes.data + i * out.strides[0],
                        z.ctypes.data,
                        z.strides[0],
                        indices.ctypes.data,
                        start,
                        end,
                        limit,
                        heads,
                        width,
                        weight.ctypes.data,
                        factor.ctypes.data,
                        carry.ctypes.data,
                        adds,
                    ),
                    slope,
                    kinds,
                )


@numba.njit(parallel=True, cache=True, nogil=True)
def write_attention_gradients(
    bounds: Any,
    rows: Any,
    indptr: Any,
    indices: Any,
    z: Any,
    el: Any,
    records: Any,
    grad: Any,
    slope: Any,
    heads: Any,
    source_ids: Any,
    destination_ids: Any,
    draw: Any,
    keep: Any,
    edge_weight: Any,
    scores: Any,
    places: Any,
    add: Any,
    d_z: Any,
    d_el: Any,
    d_er: Any,
) -> None:  # pragma: no cover - compiled
    """Gradients of a block's source rows and scores, and of the destinations' scores.

    Args:
        bounds: int64 [T + 1], the listed source rows of each lane. rows: int32 [B], these; empty: all.
        indptr: int32 [B + 1], indices: int32 [E]: the destinations of each listed source.
        records: [M, 4 K], see ``attention_vector_code.edge_weights``. grad: [M, K D], bf16 if z is.
        scores: [E, K], x_ji that forward has kept; empty: they are computed again. places: int32 [E], of each edge in it.
        add: 1 to add to ``d_z`` and ``d_el``, 0 to overwrite them.
        d_z: [S, K D], bf16 if z is, d_el: [S, K]. d_er: [T, M, K], added to.
    """
    item, width = el.itemsize, z.shape[1] // heads
    sums_apart = z.itemsize < item  # a source with many edges has its row rounded once
    limit = np.int64(len(indices))
    dropping, weighted, everything = draw[3] > 0, len(edge_weight) > 0, len(rows) == 0
    for lane in numba.prange(len(bounds) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), el.dtype)
        dropped = np.empty(weight.shape, el.dtype) if dropping or weighted else weight
        dots, sums = np.empty(weight.shape, el.dtype), np.empty(z.shape[1], el.dtype)
        for a in range(bounds[lane], bounds[lane + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            if add == 0:
                d_el[j, :] = 0
                if indptr[a] == indptr[a + 1]:
                    d_z[j, :] = 0
            own = el.ctypes.data + j * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                if len(scores) > 0:
                    kept_weights(
                        (
                            weight.ctypes.data,
                            scores.ctypes.data,
                            places.ctypes.data,
                            records.ctypes.data,
                            indices.ctypes.data,
                            start,
                            end,
                            limit,
                            heads,
                        ),
                        slope,
                    )
                else:
                    edge_weights(
                        (
                            weight.ctypes.data,
                            own,
                            records.ctypes.data,
                            indices.ctypes.data,
                            start,
                            end,
                            limit,
                            heads,
                        ),
                        slope,
                    )
                if weighted:
                    weigh_edges(weight, dropped, edge_weight, start, end)
                elif dropping:
                    dropped[: end - start] = weight[: end - start]
                if dropping:
                    mine = np.uint64(source_ids[j])
                    for e in range(start, end):
                        drop_edge(dropped[e - start], mine, np.uint64(destination_ids[indices[e]]), heads, draw, keep)
                row, later = z.ctypes.data + j * z.strides[0], np.int64(start > indptr[a])
                if sums_apart and indptr[a + 1] - indptr[a] > BATCH:
                    gradient_rows(
                        (
                            sums.ctypes.data,
                            row,
                            grad.ctypes.data,
                            grad.strides[0],
                            indices.ctypes.data,
                            start,
                            end,
                            limit,
                            heads,
                            width,
                            dropped.ctypes.data,
                            dots.ctypes.data,
                            later,
                        ),
                        slope,
                        (z.dtype.type(0), grad.dtype.type(0), sums.dtype.type(0)),
                    )
                    if end == indptr[a + 1]:
                        for f in range(len(sums)):
                            before = widen(d_z[j, f]) if add != 0 else sums.dtype.type(0)
                            d_z[j, f] = narrow(before + sums[f], d_z)
                else:
                    gradient_rows(
                        (
                            d_z.ctypes.data + j * d_z.strides[0],
                            row,
                            grad.ctypes.data,
                            grad.strides[0],
                            indices.ctypes.data,
                            start,
                            end,
                            limit,
                            heads,
                            width,
                            dropped.ctypes.data,
                            dots.ctypes.data,
                            np.int64(later + add > 0),
                        ),
                        slope,
                        (z.dtype.type(0), grad.dtype.type(0), d_z.dtype.type(0)),
                    )
                score_gradients(
                    (
                        weight.ctypes.data,
                        dropped.ctypes.data,
                        dots.ctypes.data,
                        own,
                        records.ctypes.data,
                        indices.ctypes.data,
                        start,
                        end,
                        heads,
                        d_el.ctypes.data + j * heads * item,
                        d_er.ctypes.data + np.int64(lane) * d_er.strides[0],
                    ),
                    slope,
                )


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    z, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs = np.zeros(2, np.int32), np.zeros(2, np.int64)
    numbers = (number(1, dtype), 1, longs, longs, words_of(None), number(1, dtype))
    return [
        (fold_attention, (longs, ints, ints, ints, z, x, x, *numbers, x[0], x, x, x, x)),
        (write_attention_gradients, (longs, ints, ints, ints, z, x, x, z, *numbers, x[0], x, ints, 1, z, x, x[None])),
    ]
