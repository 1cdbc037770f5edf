"""Fused GATv2 attention (Brody et al., 2022) on a CPU: nothing of size edges x heads is stored unless scores are kept.

    u_ji = z_j + x_i      e_ji = <att, LeakyReLU(u_ji)> per head      a_ji = exp(e_ji - m_i) / s_i
    out_i = sum of r a z_j

Backward, with w = att LeakyReLU'(u), d e = a (r <g_i, z_j> - delta_i): d z_j = sum of r a g_i + d e w over its destinations,
d x_i = sum of d e w and d att = sum of d e LeakyReLU(u) over its sources. Both walks compute weights again, of scores where
those are kept: one over destinations for d x and d att, one over sources for d z, so that no two threads write to one row.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width, T lanes.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_parts import dot, drop_edge
from sargnn.backends.cpu.attention_vector_code import fold_rows, pair_scores, row_of, score_softmax
from sargnn.backends.cpu.gat_loops import BATCH, weigh_edges
from sargnn.backends.cpu.vector_code import LATER, prefetch_row
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


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_attention_v2(
    edges: Any, z: Any, x: Any, att: Any, numbers: Any, edge_weight: Any, scores: Any, running: Any
) -> None:  # pragma: no cover - compiled
    """Fold a block's edges into the running softmax of every listed destination; as ``gat_loops.fold_attention``.

    Args:
        z: [S, K D], may be bf16, as x; all else is fp32 then.
        x: [M, K D].
        att: [K D].
        scores: [E, K], overwritten with e_ji; empty: they are not kept.
    """
    chunks, rows, indptr, indices = edges
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    out, max_score, denominator = running
    item, width = att.itemsize, z.shape[1] // heads
    kinds, row_kinds = (z.dtype.type(0), x.dtype.type(0)), (z.dtype.type(0), out.dtype.type(0))
    everything = len(rows) == 0
    limit = np.int64(len(indices))
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), att.dtype)
        factor, carry = np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((out.ctypes.data + later, out.strides[0]), slope)
            own = x.ctypes.data + i * x.strides[0]
            top, sums = max_score.ctypes.data + i * heads * item, denominator.ctypes.data + i * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds = np.int64(denominator[i, 0] != 0)
                for e in range(start, end):
                    place = weight.ctypes.data + (e - start) * weight.strides[0]
                    other = z.ctypes.data + np.int64(indices[e]) * z.strides[0]
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
    edges: Any, ends: Any, records: Any, grad: Any, numbers: Any, edge_weight: Any, scores: Any, d_x: Any, d_att: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of the destinations' rows and of ``att``.

    Args:
        edges: as ``edges_of`` gives them, by destination, a run for each lane.
        ends: z, x and att.
        records: [M, 4 K].
        grad: [M, K D], bf16 if z is.
        d_x: [M, K D], added to.
        d_att: fp64 [T, K D], added to.
    """
    bounds, rows, indptr, indices = edges
    z, x, att = ends
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    width = z.shape[1] // heads
    everything, weighted, unit = len(rows) == 0, len(edge_weight) > 0, att.dtype.type(1)
    for lane in numba.prange(len(bounds) - 1):
        weight, dots, d_scores = np.empty(heads, att.dtype), np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        held, of_row = (weight, dots, d_scores), np.empty(z.shape[1], att.dtype)
        for a in range(bounds[lane], bounds[lane + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            own, g, record, target = x[i], grad[i], records[i], d_x[i]
            of_row[:] = 0
            for e in range(indptr[a], indptr[a + 1]):
                j = indices[e]
                row, ids = z[j], (np.uint64(source_ids[j]), np.uint64(destination_ids[i]))
                factor = edge_weight[e] if weighted else unit
                _edge_gradients((row, own, g), att, record, (slope, heads, draw, keep), ids, factor, scores, e, held)
                for h in range(heads):
                    of = slice(h * width, (h + 1) * width)
                    _add_destination_gradient(d_scores[h], att[of], row[of], own[of], slope, target[of], of_row[of])
            for f in range(len(of_row)):
                d_att[lane, f] += of_row[f]


@numba.njit(parallel=True, cache=True, nogil=True)
def write_source_gradients(
    edges: Any, ends: Any, records: Any, grad: Any, numbers: Any, edge_weight: Any, kept: Any, add: Any, d_z: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of the sources' rows.

    Args:
        edges: as ``edges_of`` gives them, by source.
        ends: z, x and att.
        kept: as of ``gat_loops.write_attention_gradients``.
        add: 1 to add to ``d_z``, 0 to overwrite it.
        d_z: [S, K D], bf16 if z is.
    """
    chunks, rows, indptr, indices = edges
    (z, x, att), (scores, places) = ends, kept
    slope, heads, source_ids, destination_ids, draw, keep = numbers
    width = z.shape[1] // heads
    everything, weighted, has_scores, unit = len(rows) == 0, len(edge_weight) > 0, len(scores) > 0, att.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        weight, dots, d_scores = np.empty(heads, att.dtype), np.empty(heads, att.dtype), np.empty(heads, att.dtype)
        held, target = (weight, dots, d_scores), np.empty(z.shape[1], att.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            row = z[j]
            for f in range(len(target)):
                target[f] = widen(d_z[j, f]) if add != 0 else att.dtype.type(0)
            for e in range(indptr[a], indptr[a + 1]):
                i = indices[e]
                own, g, ids = x[i], grad[i], (np.uint64(source_ids[j]), np.uint64(destination_ids[i]))
                factor, place = edge_weight[e] if weighted else unit, places[e] if has_scores else 0
                _edge_gradients((row, own, g), att, records[i], (slope, heads, draw, keep), ids, factor, scores, place, held)
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
    ends = (z, z, x[0])
    return [
        (fold_attention_v2, (edges, *ends, numbers, x[0], x, (x, x, x))),
        (add_destination_gradients, (edges, ends, x, z, numbers, x[0], x, x, table)),
        (write_source_gradients, (edges, ends, x, z, numbers, x[0], (x, ints), 1, z)),
    ]
