"""Fused GATv2 attention (Brody et al., 2022) on a CPU: nothing of size edges x heads is stored unless scores are kept.

    u_ji = z_j + x_i + W f_ji      e_ji = <att, LeakyReLU(u_ji)> per head      a_ji = exp(e_ji - m_i) / s_i
    out_i = sum of r a z_j

Backward, with w = att LeakyReLU'(u), d e = a (r <g_i, z_j> - delta_i): d z_j = sum of r a g_i + d e w over its destinations,
d x_i = sum of d e w and d att = sum of d e LeakyReLU(u) over its sources. Both walks compute weights again, of scores where
those are kept: one over destinations for d x and d att, one over sources for d z, so that no two threads write to one row.

f_ji are the edge's features, W f_ji left out where they are not read; with h_ji = d e w the gradient of u_ji, which d x_i is
the sum of, d W = sum of h f^T. An edge with features sees x_i + W f_ji in place of x_i, one row that is written for it.

Letters: S source rows, M destination rows, E edges, K heads, D head width, C features of an edge, T lanes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_parts import drop_edge
from sargnn.backends.cpu.attention_vector_code import (
    add_destination_gradient,
    add_source_gradient,
    dot_rows,
    fold_rows,
    gradient_rows,
    pair_scores,
    product_gradients,
    row_of,
    score_softmax,
    score_weights,
)
from sargnn.backends.cpu.block_arrays import ALL_EDGES
from sargnn.backends.cpu.edge_features import FLUSH_EDGES, NO_FEATURES, add_outer_products, find_features, flush, mapped_rows
from sargnn.backends.cpu.gat_loops import BATCH, weigh_edges
from sargnn.backends.cpu.vector_code import LATER, prefetch_row
from sargnn.bf16 import wide
from sargnn.numba_bf16 import array_of, narrow, number, widen
from sargnn.numba_rng import words_of

_SEEN = 32
"""Edges whose destination's rows, changed by their features, are held at a time: with their sources' they stay in the cache."""
_BATCH = 64
"""Edges of a batch backward, which reads their rows three times."""


@numba.njit(inline="always")
def _batch(featured: Any) -> Any:  # pragma: no cover - compiled
    """Edges of a batch forward."""
    return np.int64(_SEEN) if featured else np.int64(BATCH)


@numba.njit(inline="always")
def write_seen(
    seen: Any, own: Any, addresses: Any, table: Any, count: Any, columns: Any, scalar: Any
) -> None:  # pragma: no cover - compiled
    """``seen[e] = own + W f_e``: a row, of which the address is given, as each of ``count`` edges sees it."""
    place = (
        seen.ctypes.data,
        np.int64(seen.strides[0]),
        own,
        addresses.ctypes.data,
        table.ctypes.data,
        np.int64(table.strides[0]),
    )
    mapped_rows(place + (count, np.int64(columns), np.int64(table.shape[1])), scalar, (scalar,))


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_attention_v2(
    edges: Any, z: Any, x: Any, att: Any, of_edges: Any, numbers: Any, edge_weight: Any, scores: Any, running: Any
) -> None:  # pragma: no cover - compiled
    """Fold a block's edges into the running softmax of every listed destination; as ``gat_loops.fold_attention``.

    Args:
        z: [S, K D], may be bf16, as x; all else is fp32 then.
        x: [M, K D].
        att: [K D].
        of_edges: features as ``features_of`` gives them, and W as ``table_of`` does, [C + 1, K D]; without rows: not read.
        scores: [E, K], overwritten with e_ji; empty: they are not kept.
    """
    chunks, rows, indptr, indices = edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    out, max_score, denominator = running
    item, width = att.itemsize, z.shape[1] // heads
    kinds, row_kinds = (z.dtype.type(0), att.dtype.type(0)), (z.dtype.type(0), out.dtype.type(0))
    features, table = of_edges
    everything, featured = len(rows) == 0, len(table) > 0
    copied, batch = featured or x.itemsize < item, _batch(featured)
    limit = np.int64(len(indices))
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), att.dtype)
        factor, carry = np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        own_row, nothing = np.empty(z.shape[1], att.dtype), np.zeros(features[0].shape[1], np.float32)
        seen, addresses = np.empty((_batch(featured), row_of(z.shape[1], item)), att.dtype), np.empty(BATCH, np.int64)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((out.ctypes.data + later, out.strides[0]), slope)
            own, stride = x.ctypes.data + i * x.strides[0], np.int64(0)
            if copied:
                own = own_row.ctypes.data
                for f in range(len(own_row)):
                    own_row[f] = widen(x[i, f])
            top, sums = max_score.ctypes.data + i * heads * item, denominator.ctypes.data + i * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), batch):
                end: Any = min(start + batch, np.int64(indptr[a + 1]))
                adds = np.int64(denominator[i, 0] != 0)
                run = (indices.ctypes.data, start, end, limit, np.int64(heads))
                if featured:
                    find_features(features, ALL_EDGES, start, end, nothing, addresses, slope)
                    stride = np.int64(seen.strides[0])
                    write_seen(seen, own_row.ctypes.data, addresses, table, np.int64(end - start), len(nothing), slope)
                    own = seen.ctypes.data
                pair = (weight.ctypes.data, att.ctypes.data, own, stride, z.ctypes.data, z.strides[0])
                pair_scores(pair + run + (width,), slope, kinds)
                if len(scores) > 0:
                    scores[start:end] = weight[: end - start, :heads]
                of_softmax = (top, sums, factor.ctypes.data, carry.ctypes.data)
                score_softmax((weight.ctypes.data, end - start, heads) + of_softmax, slope)
                if draw[3] > 0:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(weight[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                if len(edge_weight) > 0:
                    weigh_edges(weight, weight, edge_weight, start, end)
                row = (out.ctypes.data + i * out.strides[0], z.ctypes.data, z.strides[0])
                factors = (width, weight.ctypes.data, factor.ctypes.data, carry.ctypes.data, adds)
                fold_rows(row + run + factors, slope, row_kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def add_destination_gradients(
    edges: Any,
    ends: Any,
    of_edges: Any,
    records: Any,
    grad: Any,
    numbers: Any,
    edge_weight: Any,
    scores: Any,
    d_x: Any,
    d_att: Any,
    d_table: Any,
) -> None:  # pragma: no cover - compiled
    """Gradients of the destinations' rows, of ``att`` and of W.

    Args:
        edges: as ``edges_of`` gives them, by destination, a run for each lane.
        ends: z, x and att.
        of_edges: as of ``fold_attention_v2``.
        records: [M, 4 K].
        grad: [M, K D], bf16 if z is.
        scores: [E, K] that were kept; empty: they are computed again.
        d_x: [M, K D], added to.
        d_att: fp64 [T, K D], added to.
        d_table: fp64 [T, C + 1, K D], added to.
    """
    bounds, rows, indptr, indices = edges
    (z, x, att), (features, table) = ends, of_edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    item, width, unit = att.itemsize, z.shape[1] // heads, att.dtype.type(1)
    kinds, dot_kinds = (z.dtype.type(0), att.dtype.type(0)), (grad.dtype.type(0), z.dtype.type(0))
    everything, featured, limit, fixed = len(rows) == 0, len(table) > 0, np.int64(len(indices)), np.int64(0)
    dropping, weighted, batch = draw[3] > 0, len(edge_weight) > 0, min(_batch(featured), np.int64(_BATCH))
    for lane in numba.prange(len(bounds) - 1):
        weight = np.empty((_BATCH, row_of(heads, item)), att.dtype)
        dropped = np.empty(weight.shape, att.dtype) if dropping or weighted else weight
        dots, of_att = np.empty(weight.shape, att.dtype), np.empty(z.shape[1], att.dtype)
        own_row, nothing = np.empty(z.shape[1], att.dtype), np.zeros(features[0].shape[1], np.float32)
        seen, addresses = np.empty((batch, row_of(z.shape[1], item)), att.dtype), np.empty(BATCH, np.int64)
        of_table, flushed = np.zeros(table.shape, table.dtype), np.int64(indptr[bounds[lane]])
        for a in range(bounds[lane], bounds[lane + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            record = (records.ctypes.data + i * records.strides[0], fixed)
            for f in range(len(own_row)):
                own_row[f] = widen(x[i, f])
            of_att[:] = 0
            own, stride = own_row.ctypes.data, np.int64(0)
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), batch):
                end: Any = min(start + batch, np.int64(indptr[a + 1]))
                run = (indices.ctypes.data, start, end, limit, np.int64(heads))
                if featured:
                    find_features(features, ALL_EDGES, start, end, nothing, addresses, slope)
                    stride = np.int64(seen.strides[0])
                    write_seen(seen, own_row.ctypes.data, addresses, table, np.int64(end - start), len(nothing), slope)
                    own = seen.ctypes.data
                if len(scores) > 0:
                    weight[: end - start, :heads] = scores[start:end]
                else:
                    pair = (weight.ctypes.data, att.ctypes.data, own, stride, z.ctypes.data, z.strides[0])
                    pair_scores(pair + run + (width,), slope, kinds)
                score_weights((weight.ctypes.data,) + record + run, slope)
                if weighted:
                    weigh_edges(weight, dropped, edge_weight, start, end)
                elif dropping:
                    dropped[: end - start] = weight[: end - start]
                if dropping:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(dropped[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                g = (dots.ctypes.data, grad.ctypes.data + i * grad.strides[0], z.ctypes.data, z.strides[0])
                dot_rows(g + run + (width,), unit, dot_kinds)
                product_gradients((weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data) + record + run, unit)
                target = (d_x.ctypes.data + i * d_x.strides[0], of_att.ctypes.data, att.ctypes.data, dots.ctypes.data)
                here = (own, stride, np.int64(featured), z.ctypes.data, z.strides[0])
                add_destination_gradient(target + here + run + (width,), slope, kinds)
                if featured:
                    changed = (of_table.ctypes.data, of_table.strides[0], seen.ctypes.data, seen.strides[0])
                    add_outer_products(changed + (addresses.ctypes.data, end - start, len(nothing), table.shape[1]), slope)
            for f in range(len(of_att)):
                d_att[lane, f] += of_att[f]
            if featured and indptr[a + 1] - flushed > FLUSH_EDGES:
                flush(of_table, d_table[lane])
                flushed = np.int64(indptr[a + 1])
        flush(of_table, d_table[lane])


@numba.njit(parallel=True, cache=True, nogil=True)
def write_source_gradients(
    edges: Any,
    ends: Any,
    of_edges: Any,
    records: Any,
    grad: Any,
    numbers: Any,
    edge_weight: Any,
    kept: Any,
    add: Any,
    d_z: Any,
) -> None:  # pragma: no cover - compiled
    """Gradients of the sources' rows.

    Args:
        edges: as ``edges_of`` gives them, by source.
        ends: z, x and att.
        of_edges: as of ``fold_attention_v2``.
        kept: as of ``gat_loops.write_attention_gradients``.
        add: 1 to add to ``d_z``, 0 to overwrite it.
        d_z: [S, K D], bf16 if z is.
    """
    chunks, rows, indptr, indices = edges
    (z, x, att), (scores, places), (features, table) = ends, kept, of_edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    item, width, record_bytes = att.itemsize, z.shape[1] // heads, np.int64(records.strides[0])
    kinds, sum_kinds = (x.dtype.type(0), att.dtype.type(0)), (z.dtype.type(0), grad.dtype.type(0), att.dtype.type(0))
    everything, featured, limit, zero = len(rows) == 0, len(table) > 0, np.int64(len(indices)), att.dtype.type(0)
    dropping, weighted, batch = draw[3] > 0, len(edge_weight) > 0, min(_batch(featured), np.int64(_BATCH))
    record = (records.ctypes.data, record_bytes)
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((_BATCH, row_of(heads, item)), att.dtype)
        dropped = np.empty(weight.shape, att.dtype) if dropping or weighted else weight
        dots, total = np.empty(weight.shape, att.dtype), np.empty(z.shape[1], att.dtype)
        own_row, nothing = np.empty(z.shape[1], att.dtype), np.zeros(features[0].shape[1], np.float32)
        seen, addresses = np.empty((batch, row_of(z.shape[1], item)), att.dtype), np.empty(BATCH, np.int64)
        for a in range(chunks[c], chunks[c + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            for f in range(len(own_row)):
                own_row[f], total[f] = widen(z[j, f]), (widen(d_z[j, f]) if add != 0 else zero)
            own, stride = own_row.ctypes.data, np.int64(0)
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), batch):
                end: Any = min(start + batch, np.int64(indptr[a + 1]))
                run = (indices.ctypes.data, start, end, limit, np.int64(heads))
                if featured:
                    find_features(features, places, start, end, nothing, addresses, slope)
                    stride = np.int64(seen.strides[0])
                    write_seen(seen, own_row.ctypes.data, addresses, table, np.int64(end - start), len(nothing), slope)
                    own = seen.ctypes.data
                if len(scores) > 0:
                    for e in range(start, end):
                        weight[e - start, :heads] = scores[places[e]]
                else:
                    pair = (weight.ctypes.data, att.ctypes.data, own, stride, x.ctypes.data, x.strides[0])
                    pair_scores(pair + run + (width,), slope, kinds)
                score_weights((weight.ctypes.data,) + record + run, slope)
                if weighted:
                    weigh_edges(weight, dropped, edge_weight, start, end)
                elif dropping:
                    dropped[: end - start] = weight[: end - start]
                if dropping:
                    mine = np.uint64(source_ids[j])
                    for e in range(start, end):
                        drop_edge(dropped[e - start], mine, np.uint64(destination_ids[indices[e]]), heads, draw, keep)
                values = (total.ctypes.data, z.ctypes.data + j * z.strides[0], grad.ctypes.data, grad.strides[0])
                gradient_rows(values + run + (width, dropped.ctypes.data, dots.ctypes.data, np.int64(1)), slope, sum_kinds)
                product_gradients((weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data) + record + run, att.dtype.type(1))
                target = (total.ctypes.data, total.ctypes.data, att.ctypes.data, dots.ctypes.data)
                here = (own, stride, np.int64(0), x.ctypes.data, x.strides[0])
                add_source_gradient(target + here + run + (width,), slope, kinds)
            for f in range(len(total)):
                d_z[j, f] = narrow(total[f], d_z)


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    z, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs, table = np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros((1, 16))
    edges, numbers = (longs, ints, ints, ints), (number(1, dtype), 1, longs, longs, words_of(None), number(1, dtype))
    ends, of_edges = (z, z, x[0]), (NO_FEATURES, x)
    return [
        (fold_attention_v2, (edges, *ends, of_edges, numbers, x[0], x, (x, x, x))),
        (add_destination_gradients, (edges, ends, of_edges, x, z, numbers, x[0], x, x, table, table[None])),
        (write_source_gradients, (edges, ends, of_edges, x, z, numbers, x[0], (x, ints), 1, z)),
    ]
