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

import math
from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_parts import dot, drop_edge
from sargnn.backends.cpu.attention_vector_code import fold_rows, pair_scores, row_of, score_softmax
from sargnn.backends.cpu.edge_features import FLUSH_EDGES, NO_FEATURES, features_at, fetch_features, flush, write_changed
from sargnn.backends.cpu.gat_loops import BATCH, add_products, weigh_edges
from sargnn.backends.cpu.vector_code import AHEAD, LATER, prefetch_row
from sargnn.bf16 import array_of, narrow, number, wide, widen
from sargnn.rng import words_of


@numba.njit(fastmath={"contract"}, nogil=True)
def _add_destination_gradient(
    d_score: Any, att: Any, z: Any, x: Any, slope: Any, d_x: Any, d_att: Any
) -> None:  # pragma: no cover - compiled
    unit, zero = att.dtype.type(1), att.dtype.type(0)
    for f in range(len(z)):
        u = widen(z[f]) + widen(x[f])
        factor = unit if u > zero else slope
        d_x[f] += d_score * att[f] * factor
        d_att[f] += d_score * u * factor


@numba.njit(fastmath={"contract"}, nogil=True)
def _add_source_gradient(
    d_score: Any, weight: Any, att: Any, z: Any, x: Any, g: Any, slope: Any, d_z: Any
) -> None:  # pragma: no cover - compiled
    unit, zero = att.dtype.type(1), att.dtype.type(0)
    for f in range(len(z)):
        factor = unit if widen(z[f]) + widen(x[f]) > zero else slope
        d_z[f] += weight * widen(g[f]) + d_score * att[f] * factor


@numba.njit(inline="always")
def write_seen(out: Any, own: Any, given: Any, table: Any, scalar: Any) -> None:  # pragma: no cover - compiled
    """``out = x_i + W f``, numbers: a destination's row as an edge sees it."""
    source = (out.ctypes.data, own.ctypes.data, given.ctypes.data, table.ctypes.data)
    sizes = (np.int64(table.strides[0]), np.int64(len(given)), np.int64(len(out)))
    write_changed(source + sizes, scalar, (own.dtype.type(0),))


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
    copied = featured or x.itemsize < item
    limit = np.int64(len(indices))
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), att.dtype)
        factor, carry = np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        seen, nothing = np.empty(z.shape[1], att.dtype), np.zeros(features[0].shape[1], np.float32)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((out.ctypes.data + later, out.strides[0]), slope)
            own = x.ctypes.data + i * x.strides[0]
            if copied:
                own = seen.ctypes.data
                for f in range(len(seen)):
                    seen[f] = widen(x[i, f])
            top, sums = max_score.ctypes.data + i * heads * item, denominator.ctypes.data + i * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds = np.int64(denominator[i, 0] != 0)
                for e in range(start, end):
                    place = weight.ctypes.data + (e - start) * weight.strides[0]
                    other = z.ctypes.data + np.int64(indices[e]) * z.strides[0]
                    if featured:
                        fetch_features(features, min(e + AHEAD, limit - 1), slope)
                        write_seen(seen, x[i], features_at(features, e, nothing), table, slope)
                    pair_scores((place, att.ctypes.data, other, own, np.int64(heads), width), slope, kinds)
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
                run = (indices.ctypes.data, start, end, limit, heads)
                factors = (width, weight.ctypes.data, factor.ctypes.data, carry.ctypes.data, adds)
                fold_rows(row + run + factors, slope, row_kinds)


@numba.njit(nogil=True)
def _edge_gradients(
    rows: Any, att: Any, record: Any, numbers: Any, ids: Any, factor: Any, scores: Any, place: Any, held: Any
) -> None:  # pragma: no cover - compiled
    """One edge's weights after dropout, times ``factor``, and gradients of its scores.

    Args:
        rows: the source's z, the destination's x and gradient.
        record: of the destination, [4 K].
        numbers: slope, K, draw and keep.
        ids: of source and destination, uint64.
        scores: [E, K] that were kept; empty: the edge's are computed again.
        place: the edge's among them.
        held: weights, dots and gradients of scores, [K] each, written.
    """
    (row, own, g), (slope, heads, draw, keep), (weight, dots, d_scores) = rows, numbers, held
    width = np.int64(len(row) // heads)
    if len(scores) > 0:
        d_scores[:] = scores[place]
    else:
        ends = (d_scores.ctypes.data, att.ctypes.data, row.ctypes.data, own.ctypes.data, np.int64(heads), width)
        pair_scores(ends, slope, (row.dtype.type(0), own.dtype.type(0)))
    for h in range(heads):
        first, last = h * width, (h + 1) * width
        score = d_scores[h]
        dots[h] = dot(g[first:last], row[first:last], att.dtype.type(0))
        weight[h] = math.exp(score - record[heads + h]) * record[2 * heads + h]
        d_scores[h] = -weight[h] * record[3 * heads + h]
    if draw[3] > 0:
        drop_edge(weight, ids[0], ids[1], heads, draw, keep)
    for h in range(heads):
        weight[h] *= factor
        d_scores[h] += weight[h] * dots[h]


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
        d_x: [M, K D], added to.
        d_att: fp64 [T, K D], added to.
        d_table: fp64 [T, C + 1, K D], added to.
    """
    bounds, rows, indptr, indices = edges
    z, x, att = ends
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    width, (features, table) = z.shape[1] // heads, of_edges
    everything, weighted, featured, unit = len(rows) == 0, len(edge_weight) > 0, len(table) > 0, att.dtype.type(1)
    for lane in numba.prange(len(bounds) - 1):
        weight, dots, d_scores = np.empty(heads, att.dtype), np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        held, of_row = (weight, dots, d_scores), np.empty(z.shape[1], att.dtype)
        seen, of_edge, nothing = np.empty_like(of_row), np.empty_like(of_row), np.zeros(features[0].shape[1], np.float32)
        of_table, flushed = np.zeros(table.shape, table.dtype), np.int64(indptr[bounds[lane]])
        for a in range(bounds[lane], bounds[lane + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            g, record, target = grad[i], records[i], d_x[i]
            for f in range(len(seen)):
                seen[f] = widen(x[i, f])
            of_row[:] = 0
            for e in range(indptr[a], indptr[a + 1]):
                j = indices[e]
                if featured:
                    write_seen(seen, x[i], features_at(features, e, nothing), table, slope)
                    of_edge[:] = 0
                row, ids = z[j], (np.uint64(source_ids[j]), np.uint64(destination_ids[i]))
                factor = edge_weight[e] if weighted else unit
                _edge_gradients((row, seen, g), att, record, (slope, heads, draw, keep), ids, factor, scores, e, held)
                into = of_edge if featured else target
                for h in range(heads):
                    of = slice(h * width, (h + 1) * width)
                    _add_destination_gradient(d_scores[h], att[of], row[of], seen[of], slope, into[of], of_row[of])
                if featured:
                    add_products(of_table, of_edge, features_at(features, e, nothing), len(of_edge), slope)
                    for f in range(len(of_edge)):
                        target[f] += of_edge[f]
            for f in range(len(of_row)):
                d_att[lane, f] += of_row[f]
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
    (z, x, att), (scores, places) = ends, kept
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    width, (features, table) = z.shape[1] // heads, of_edges
    everything, weighted, has_scores, unit = len(rows) == 0, len(edge_weight) > 0, len(scores) > 0, att.dtype.type(1)
    featured, last = len(table) > 0, np.int64(len(indices) - 1)
    for c in numba.prange(len(chunks) - 1):
        weight, dots, d_scores = np.empty(heads, att.dtype), np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        held, target = (weight, dots, d_scores), np.empty(z.shape[1], att.dtype)
        seen, nothing = np.empty_like(target), np.zeros(features[0].shape[1], np.float32)
        for a in range(chunks[c], chunks[c + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            row = z[j]
            for f in range(len(target)):
                target[f] = widen(d_z[j, f]) if add != 0 else att.dtype.type(0)
            for e in range(indptr[a], indptr[a + 1]):
                i = indices[e]
                own, g, ids = x[i], grad[i], (np.uint64(source_ids[j]), np.uint64(destination_ids[i]))
                factor, place = edge_weight[e] if weighted else unit, places[e] if has_scores else 0
                number = (slope, heads, draw, keep)
                if featured:
                    fetch_features(features, places[min(e + AHEAD, last)], slope)
                    write_seen(seen, own, features_at(features, places[e], nothing), table, slope)
                    _edge_gradients((row, seen, g), att, records[i], number, ids, factor, scores, place, held)
                    for h in range(heads):
                        of = slice(h * width, (h + 1) * width)
                        _add_source_gradient(d_scores[h], weight[h], att[of], row[of], seen[of], g[of], slope, target[of])
                    continue
                _edge_gradients((row, own, g), att, records[i], number, ids, factor, scores, place, held)
                for h in range(heads):
                    of = slice(h * width, (h + 1) * width)
                    _add_source_gradient(d_scores[h], weight[h], att[of], row[of], own[of], g[of], slope, target[of])
            for f in range(len(target)):
                d_z[j, f] = narrow(target[f], d_z)


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
