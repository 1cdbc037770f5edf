"""Fused graph attention on a CPU, compiled with Numba: nothing of size edges x heads is stored unless scores are kept.

    x_ji = LeakyReLU(el_j + er_i + A f_ji)       a_ji = exp(x_ji - m_i) / s_i       out_i = sum over j -> i of r_ji a_ji z_j

r_ji is attention dropout's factor, drawn by the original ids of the edge's ends, 1 without dropout, times the edge's weight if
there are weights. It stands outside the softmax, so gradients hold for any r. Forward walks destinations,
a batch of edges at a time through ``edge_softmax``; out is normalised at all times, so the softmax goes on from shard to shard
without a closing pass. Backward walks sources, one row of z and its gradient at a time:

    d z_j = sum of r a g_i      d el_j = sum of d x      d er_i = sum of d x      d x = a (r <g_i, z_j> - delta_i) LeakyReLU'

with delta_i = <g_i, out_i> per head. f_ji are the edge's features, A f_ji a number of each head, left out where features are
not read; d A = sum of d x f_ji^T. What an edge adds is held for a batch of edges, as part of the score of the end that they
share.

Sources are cut into one lane per thread with equal edges, and every lane has room of
its own for d er: two runs with the same number of threads give the same bits.

Letters: S source rows, M destination rows, E edges, K heads, D head width, C features of an edge, T lanes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_parts import drop_edge
from sargnn.backends.cpu.attention_vector_code import (
    edge_softmax,
    edge_weights,
    fold_rows,
    gradient_rows,
    kept_weights,
    row_of,
    score_gradients,
)
from sargnn.backends.cpu.block_arrays import ALL_EDGES
from sargnn.backends.cpu.edge_features import FLUSH_EDGES, NO_FEATURES, add_outer_products, find_features, flush, mapped_rows
from sargnn.backends.cpu.vector_code import LATER, prefetch_row
from sargnn.bf16 import wide
from sargnn.numba_bf16 import array_of, narrow, number, widen
from sargnn.numba_rng import words_of

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
    edges: Any, z: Any, el: Any, er: Any, of_edges: Any, numbers: Any, edge_weight: Any, scores: Any, running: Any
) -> None:  # pragma: no cover - compiled
    """Fold a block's edges into the running softmax of every listed destination.

    Args:
        edges: as ``edges_of`` gives them, by destination.
        z: [S, K D], may be bf16; all else is fp32 then.
        el: [S, K].
        er: [M, K].
        of_edges: features as ``features_of`` gives them, and A as ``table_of`` does, [C + 1, K]; without rows: not read.
        numbers: slope of LeakyReLU, K, source ids int64 [S], destination ids int64 [M], and draw and keep of
            ``attention_parts.drop_edge``; a threshold of 0 drops nothing.
        edge_weight: [E], in the order of the indices; empty: 1.
        scores: [E, K], overwritten with x_ji; empty: they are not kept.
        running: out [M, K D], whose rows are overwritten where the denominator is 0; maxima and denominators [M, K], so far.
    """
    chunks, rows, indptr, indices = edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    out, max_score, denominator = running
    item, width, kinds = el.itemsize, z.shape[1] // heads, (z.dtype.type(0), out.dtype.type(0))
    everything = len(rows) == 0
    limit = np.int64(len(indices))
    features, table = of_edges
    dropping, weighted, featured = draw[3] > 0, len(edge_weight) > 0, len(table) > 0
    kept_at = np.int64(scores.ctypes.data) if len(scores) > 0 else np.int64(0)
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), el.dtype)
        factor, carry = np.empty(heads, el.dtype), np.empty(heads, el.dtype)
        changed = np.empty((BATCH if featured else 1, weight.shape[1]), el.dtype)
        nothing, addresses = np.zeros(features[0].shape[1], np.float32), np.empty(BATCH, np.int64)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((out.ctypes.data + later, out.strides[0]), slope)
            top, sums = max_score.ctypes.data + i * heads * item, denominator.ctypes.data + i * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds = np.int64(denominator[i, 0] != 0)
                run = (indices.ctypes.data, start, end, limit, heads)
                own, stride = er.ctypes.data + i * heads * item, np.int64(0)
                if featured:
                    find_features(features, ALL_EDGES, start, end, nothing, addresses, slope)
                    stride = np.int64(changed.strides[0])
                    place = (changed.ctypes.data, stride, own, addresses.ctypes.data, table.ctypes.data, table.strides[0])
                    mapped_rows(place + (end - start, len(nothing), heads), slope, (slope,))
                    own = changed.ctypes.data
                ends = (own, stride, kept_at, top, sums, factor.ctypes.data, carry.ctypes.data)
                edge_softmax((weight.ctypes.data, el.ctypes.data) + run + ends, slope)
                if dropping:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(weight[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                if weighted:
                    weigh_edges(weight, weight, edge_weight, start, end)
                row = (out.ctypes.data + i * out.strides[0], z.ctypes.data, z.strides[0])
                factors = (width, weight.ctypes.data, factor.ctypes.data, carry.ctypes.data, adds)
                fold_rows(row + run + factors, slope, kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def write_attention_gradients(
    edges: Any,
    z: Any,
    el: Any,
    of_edges: Any,
    records: Any,
    grad: Any,
    numbers: Any,
    edge_weight: Any,
    kept: Any,
    add: Any,
    gradients: Any,
) -> None:  # pragma: no cover - compiled
    """Gradients of a block's source rows and scores, and of the destinations' scores.

    Args:
        edges: as ``edges_of`` gives them, by source, a run for each lane.
        of_edges: as of ``fold_attention``.
        records: [M, 4 K], see ``attention_vector_code.edge_weights``.
        grad: [M, K D], bf16 if z is.
        kept: scores [E, K], x_ji that forward has kept, empty: they are computed again; int32 [E], the place of each edge among
            them and among those that have features; empty: neither is read.
        add: 1 to add to the sources' gradients, 0 to overwrite them.
        gradients: d z [S, K D], bf16 if z is; d el [S, K]; d er [T, M, K], added to; d A, fp64 [T, C + 1, K], added to.
    """
    bounds, rows, indptr, indices = edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    (scores, places), (d_z, d_el, d_er, d_table), (features, table) = kept, gradients, of_edges
    item, width = el.itemsize, z.shape[1] // heads
    sums_apart = z.itemsize < item  # a source with many edges has its row rounded once
    limit = np.int64(len(indices))
    dropping, weighted, everything, featured = draw[3] > 0, len(edge_weight) > 0, len(rows) == 0, len(table) > 0
    for lane in numba.prange(len(bounds) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), el.dtype)
        dropped = np.empty(weight.shape, el.dtype) if dropping or weighted else weight
        dots, sums = np.empty(weight.shape, el.dtype), np.empty(z.shape[1], el.dtype)
        changed = np.empty((BATCH if featured else 1, weight.shape[1]), el.dtype)
        nothing, addresses = np.zeros(features[0].shape[1], np.float32), np.empty(BATCH, np.int64)
        of_table, flushed = np.zeros(table.shape, table.dtype), np.int64(indptr[bounds[lane]])
        for a in range(bounds[lane], bounds[lane + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            if add == 0:
                d_el[j, :] = 0
                if indptr[a] == indptr[a + 1]:
                    d_z[j, :] = 0
            own, stride = el.ctypes.data + j * heads * item, np.int64(0)
            if featured:
                stride = np.int64(changed.strides[0])
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                run = (indices.ctypes.data, start, end, limit, heads)
                if featured:
                    own = el.ctypes.data + j * heads * item
                    find_features(features, places, start, end, nothing, addresses, slope)
                    place = (changed.ctypes.data, stride, own, addresses.ctypes.data, table.ctypes.data, table.strides[0])
                    mapped_rows(place + (end - start, len(nothing), heads), slope, (slope,))
                    own = changed.ctypes.data
                if len(scores) > 0:
                    of_scores = (weight.ctypes.data, scores.ctypes.data, places.ctypes.data, records.ctypes.data)
                    kept_weights(of_scores + run, slope)
                else:
                    edge_weights((weight.ctypes.data, own, stride, records.ctypes.data) + run, slope)
                if weighted:
                    weigh_edges(weight, dropped, edge_weight, start, end)
                elif dropping:
                    dropped[: end - start] = weight[: end - start]
                if dropping:
                    mine = np.uint64(source_ids[j])
                    for e in range(start, end):
                        drop_edge(dropped[e - start], mine, np.uint64(destination_ids[indices[e]]), heads, draw, keep)
                ends = (z.ctypes.data + j * z.strides[0], grad.ctypes.data, grad.strides[0]) + run
                factors, later = (width, dropped.ctypes.data, dots.ctypes.data), np.int64(start > indptr[a])
                if sums_apart and indptr[a + 1] - indptr[a] > BATCH:
                    kinds = (z.dtype.type(0), grad.dtype.type(0), sums.dtype.type(0))
                    gradient_rows((sums.ctypes.data,) + ends + factors + (later,), slope, kinds)
                    if end == indptr[a + 1]:
                        for f in range(len(sums)):
                            before = widen(d_z[j, f]) if add != 0 else sums.dtype.type(0)
                            d_z[j, f] = narrow(before + sums[f], d_z)
                else:
                    target = d_z.ctypes.data + j * d_z.strides[0]
                    own_kinds = (z.dtype.type(0), grad.dtype.type(0), d_z.dtype.type(0))
                    gradient_rows((target,) + ends + factors + (np.int64(later + add > 0),), slope, own_kinds)
                held = (weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data, own, stride, records.ctypes.data)
                totals = (d_el.ctypes.data + j * heads * item, d_er.ctypes.data + np.int64(lane) * d_er.strides[0])
                score_gradients(held + (indices.ctypes.data, start, end, heads) + totals, slope)
                if featured:
                    rows_of_edges = (of_table.ctypes.data, of_table.strides[0], dots.ctypes.data, dots.strides[0])
                    add_outer_products(rows_of_edges + (addresses.ctypes.data, end - start, len(nothing), heads), slope)
            if featured and indptr[a + 1] - flushed > FLUSH_EDGES:
                flush(of_table, d_table[lane])
                flushed = np.int64(indptr[a + 1])
        flush(of_table, d_table[lane])


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    z, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs = np.zeros(2, np.int32), np.zeros(2, np.int64)
    edges, numbers = (longs, ints, ints, ints), (number(1, dtype), 1, longs, longs, words_of(None), number(1, dtype))
    of_edges, table = (NO_FEATURES, x), np.zeros((1, 1, 16))
    return [
        (fold_attention, (edges, z, x, x, of_edges, numbers, x[0], x, (x, x, x))),
        (write_attention_gradients, (edges, z, x, of_edges, x, z, numbers, x[0], (x, ints), 1, (z, x, x[None], table))),
    ]
