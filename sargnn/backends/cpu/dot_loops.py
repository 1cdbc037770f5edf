"""Fused attention by dot products on a CPU: nothing of size edges x heads is stored unless scores are kept.

    e_ji = factor <q_i, k_j> per head      a_ji = exp(e_ji - m_i) / s_i      out_i = sum of r a v_j

Backward, with d e = a (r <g_i, v_j> - delta_i): d q_i = factor * sum of d e k_j over its sources, d v_j = sum of r a g_i and
d k_j = factor * sum of d e q_i over its destinations. Both walks compute weights again, of scores where those are kept: one
over destinations for d q, one over sources for d v and d k, so that no two threads write to one row. A product is summed in one
order wherever it is computed, so that weights are the same ones, bit for bit. A row's gradient is held wide, and rounded once.

Edges may have rows f_ji, the same for all heads: they add factor <p_i, f_ji> to the score, and their sums with the same weights
are t_i. The walk over destinations then writes weights and gradients of scores, [E, K] each, for the walk over sources.

Letters: S source rows, M destination rows, E edges, B edges of a batch, K heads, D head width of values, C of keys, F of edges.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.attention_parts import drop_edge
from sargnn.backends.cpu.attention_vector_code import (
    add_edge_products,
    add_edge_rows,
    dot_rows,
    fold_rows,
    gradient_rows,
    product_gradients,
    row_of,
    score_softmax,
    score_weights,
)
from sargnn.backends.cpu.gat_loops import weigh_edges
from sargnn.backends.cpu.vector_code import LATER, prefetch_row
from sargnn.bf16 import wide
from sargnn.numba_bf16 import array_of, narrow, number, widen
from sargnn.numba_rng import words_of

BATCH = 64
"""Edges at a time: their rows are read two or three times, from a cache but for the first."""


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_attention_dot(
    edges: Any, v: Any, k: Any, q: Any, numbers: Any, edge_weight: Any, scores: Any, of_edges: Any, running: Any
) -> None:  # pragma: no cover - compiled
    """Fold a block's edges into the running softmax of every listed destination; as ``gat_loops.fold_attention``.

    Args:
        v: [S, K D], may be bf16, as k and q; all else is fp32 then.
        k: [S, K C].
        q: [M, K C].
        numbers: as there, with ``factor`` for the slope.
        scores: [E, K], overwritten with e_ji; empty: they are not kept.
        of_edges: f [E, F], p [M, K F], and t [M, K F] as out; F = 0: edges have no rows.
    """
    chunks, rows, indptr, indices = edges
    f, p, t = of_edges
    scale, heads, source_ids, destination_ids, draw, keep = numbers
    out, max_score, denominator = running
    item, width, of_keys = max_score.itemsize, v.shape[1] // heads, k.shape[1] // heads
    kinds, row_kinds = (q.dtype.type(0), k.dtype.type(0)), (v.dtype.type(0), out.dtype.type(0))
    own_kinds, t_kinds, of_f = (p.dtype.type(0), f.dtype.type(0)), (f.dtype.type(0), t.dtype.type(0)), np.int64(f.shape[1])
    everything, limit = len(rows) == 0, np.int64(len(indices))
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), max_score.dtype)
        factor, carry = np.empty(heads, max_score.dtype), np.empty(heads, max_score.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((out.ctypes.data + later, out.strides[0]), scale)
            own = q.ctypes.data + i * q.strides[0]
            top, sums = max_score.ctypes.data + i * heads * item, denominator.ctypes.data + i * heads * item
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds, run = np.int64(denominator[i, 0] != 0), (indices.ctypes.data, start, end, limit, heads)
                dot_rows((weight.ctypes.data, own, k.ctypes.data, k.strides[0]) + run + (of_keys,), scale, kinds)
                edge_run = (f.ctypes.data, f.strides[0], start, end, np.int64(heads), of_f)
                if of_f > 0:
                    add_edge_products((weight.ctypes.data, p.ctypes.data + i * p.strides[0]) + edge_run, scale, own_kinds)
                if len(scores) > 0:
                    scores[start:end] = weight[: end - start, :heads]
                of_softmax = (top, sums, factor.ctypes.data, carry.ctypes.data)
                score_softmax((weight.ctypes.data, end - start, heads) + of_softmax, scale)
                if draw[3] > 0:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(weight[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                if len(edge_weight) > 0:
                    weigh_edges(weight, weight, edge_weight, start, end)
                row = (out.ctypes.data + i * out.strides[0], v.ctypes.data, v.strides[0])
                factors = (width, weight.ctypes.data, factor.ctypes.data, carry.ctypes.data, adds)
                fold_rows(row + run + factors, scale, row_kinds)
                if of_f > 0:
                    add_edge_rows((t.ctypes.data + i * t.strides[0],) + edge_run + factors[1:], scale, t_kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def add_query_gradients(
    edges: Any, ends: Any, records: Any, grad: Any, numbers: Any, edge_weight: Any, scores: Any, of_edges: Any, d_q: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of the destinations' rows.

    Args:
        edges: as ``edges_of`` gives them, by destination.
        ends: v, k and q.
        records: [M, 4 K].
        grad: [M, K D], bf16 if v is.
        scores: [E, K] that were kept; empty: they are computed again.
        of_edges: f [E, F], p and the gradient of t [M, K F]; d p [M, K F], added to; d f [E, F], overwritten, or empty; weights
            after dropout and gradients of scores, times the factor, [E, K] each, written. F = 0: edges have no rows.
        d_q: [M, K C], added to.
    """
    chunks, rows, indptr, indices = edges
    f, p, d_t, d_p, d_f, all_dropped, all_d = of_edges
    p_kinds, t_kinds, d_kinds = (
        (p.dtype.type(0), f.dtype.type(0)),
        (d_t.dtype.type(0), f.dtype.type(0)),
        (f.dtype.type(0), d_p.dtype.type(0)),
    )
    of_f = np.int64(f.shape[1])
    v, k, q = ends
    scale, heads, source_ids, destination_ids, draw, keep = numbers
    item, width, of_keys = records.itemsize, v.shape[1] // heads, k.shape[1] // heads
    score_kinds, dot_kinds = (q.dtype.type(0), k.dtype.type(0)), (grad.dtype.type(0), v.dtype.type(0))
    sum_kinds, unit = (k.dtype.type(0), d_q.dtype.type(0)), records.dtype.type(1)
    everything, limit, fixed = len(rows) == 0, np.int64(len(indices)), np.int64(0)
    dropping, weighted = draw[3] > 0, len(edge_weight) > 0
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), records.dtype)
        dropped = np.empty(weight.shape, records.dtype) if dropping or weighted else weight
        dots, ones = np.empty(weight.shape, records.dtype), np.ones(heads, records.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            record = records.ctypes.data + i * records.strides[0]
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                run = (indices.ctypes.data, start, end, limit, heads)
                if len(scores) > 0:
                    weight[: end - start, :heads] = scores[start:end]
                else:
                    own = (weight.ctypes.data, q.ctypes.data + i * q.strides[0], k.ctypes.data, k.strides[0])
                    dot_rows(own + run + (of_keys,), scale, score_kinds)
                edge_run = (f.ctypes.data, f.strides[0], start, end, np.int64(heads), of_f)
                if of_f > 0:
                    add_edge_products((weight.ctypes.data, p.ctypes.data + i * p.strides[0]) + edge_run, scale, p_kinds)
                score_weights((weight.ctypes.data, record, fixed) + run, scale)
                if weighted:
                    weigh_edges(weight, dropped, edge_weight, start, end)
                elif dropping:
                    dropped[: end - start] = weight[: end - start]
                if dropping:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(dropped[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                g = (dots.ctypes.data, grad.ctypes.data + i * grad.strides[0], v.ctypes.data, v.strides[0])
                dot_rows(g + run + (width,), unit, dot_kinds)
                if of_f > 0:
                    add_edge_products((dots.ctypes.data, d_t.ctypes.data + i * d_t.strides[0]) + edge_run, unit, t_kinds)
                held = (weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data, record, fixed)
                product_gradients(held + run, scale)
                target = (d_q.ctypes.data + i * d_q.strides[0], k.ctypes.data, k.strides[0])
                factors = (of_keys, dots.ctypes.data, ones.ctypes.data, ones.ctypes.data, np.int64(1))
                fold_rows(target + run + factors, scale, sum_kinds)
                if of_f > 0:
                    all_dropped[start:end], all_d[start:end] = dropped[: end - start, :heads], dots[: end - start, :heads]
                    add_edge_rows((d_p.ctypes.data + i * d_p.strides[0],) + edge_run + factors[1:], scale, d_kinds)
                    for e in range(start, start if len(d_f) == 0 else end):
                        for column in range(of_f):
                            total = unit * 0
                            for h in range(heads):
                                at = h * of_f + column
                                total += dropped[e - start, h] * widen(d_t[i, at]) + dots[e - start, h] * widen(p[i, at])
                            d_f[e, column] = narrow(total, d_f)


@numba.njit(parallel=True, cache=True, nogil=True)
def write_key_gradients(
    edges: Any, ends: Any, records: Any, grad: Any, numbers: Any, edge_weight: Any, kept: Any, add: Any, gradients: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of the sources' rows.

    Args:
        edges: as ``edges_of`` gives them, by source.
        ends: v, k and q.
        kept: as of ``gat_loops.write_attention_gradients``; then of edges with rows what ``add_query_gradients`` has written,
            else two empty tables.
        add: 1 to add to the gradients, 0 to overwrite them.
        gradients: d v [S, K D] and d k [S, K C], bf16 if v is, and 1 if they are the same table, which gets the sum, else 0.
    """
    chunks, rows, indptr, indices = edges
    (v, k, q), (scores, places, all_dropped, all_d), (d_v, d_k, one_table) = ends, kept, gradients
    scale, heads, source_ids, destination_ids, draw, keep = numbers
    item, width, of_keys = records.itemsize, v.shape[1] // heads, k.shape[1] // heads
    score_kinds, record_bytes = (k.dtype.type(0), q.dtype.type(0)), np.int64(records.strides[0])
    zero = records.dtype.type(0)
    everything, limit = len(rows) == 0, np.int64(len(indices))
    dropping, weighted, given = draw[3] > 0, len(edge_weight) > 0, len(all_dropped) > 0
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), records.dtype)
        dropped = np.empty(weight.shape, records.dtype) if dropping or weighted else weight
        dots, ones = np.empty(weight.shape, records.dtype), np.ones(heads, records.dtype)
        sum_v, sum_k = np.empty(v.shape[1], records.dtype), np.empty(k.shape[1], records.dtype)
        of_keys_sum = sum_v if one_table != 0 else sum_k
        value_kinds = (v.dtype.type(0), grad.dtype.type(0), sum_v.dtype.type(0))
        sum_kinds, given_kinds = (q.dtype.type(0), sum_k.dtype.type(0)), (grad.dtype.type(0), sum_v.dtype.type(0))
        for a in range(chunks[c], chunks[c + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            for f in range(len(sum_v)):
                sum_v[f] = widen(d_v[j, f]) if add != 0 else zero
            for f in range(len(sum_k)):
                sum_k[f] = widen(d_k[j, f]) if add != 0 else zero
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                run = (indices.ctypes.data, start, end, limit, heads)
                if given:
                    for e in range(start, end):
                        dropped[e - start, :heads], dots[e - start, :heads] = all_dropped[places[e]], all_d[places[e]]
                    row = (sum_v.ctypes.data, grad.ctypes.data, grad.strides[0])
                    factors = (width, dropped.ctypes.data, ones.ctypes.data, ones.ctypes.data, np.int64(1))
                    fold_rows(row + run + factors, scale, given_kinds)
                else:
                    if len(scores) > 0:
                        for e in range(start, end):
                            weight[e - start, :heads] = scores[places[e]]
                    else:
                        own = (weight.ctypes.data, k.ctypes.data + j * k.strides[0], q.ctypes.data, q.strides[0])
                        dot_rows(own + run + (of_keys,), scale, score_kinds)
                    score_weights((weight.ctypes.data, records.ctypes.data, record_bytes) + run, scale)
                    if weighted:
                        weigh_edges(weight, dropped, edge_weight, start, end)
                    elif dropping:
                        dropped[: end - start] = weight[: end - start]
                    if dropping:
                        mine = np.uint64(source_ids[j])
                        for e in range(start, end):
                            drop_edge(dropped[e - start], mine, np.uint64(destination_ids[indices[e]]), heads, draw, keep)
                    values = (sum_v.ctypes.data, v.ctypes.data + j * v.strides[0], grad.ctypes.data, grad.strides[0])
                    of_edges = (width, dropped.ctypes.data, dots.ctypes.data, np.int64(1))
                    gradient_rows(values + run + of_edges, scale, value_kinds)
                    held = (weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data, records.ctypes.data, record_bytes)
                    product_gradients(held + run, scale)
                target = (of_keys_sum.ctypes.data, q.ctypes.data, q.strides[0])
                factors = (of_keys, dots.ctypes.data, ones.ctypes.data, ones.ctypes.data, np.int64(1))
                fold_rows(target + run + factors, scale, sum_kinds)
            for f in range(len(sum_v)):
                d_v[j, f] = narrow(sum_v[f], d_v)
            if one_table == 0:
                for f in range(len(sum_k)):
                    d_k[j, f] = narrow(sum_k[f], d_k)


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    v, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs = np.zeros(2, np.int32), np.zeros(2, np.int64)
    edges, numbers = (longs, ints, ints, ints), (number(1, dtype), 1, longs, longs, words_of(None), number(1, dtype))
    return [
        (fold_attention_dot, (edges, v, v, v, numbers, x[0], x, (v, v, x), (x, x, x))),
        (add_query_gradients, (edges, (v, v, v), x, v, numbers, x[0], x, (v, v, v, x, v, x, x), x)),
        (write_key_gradients, (edges, (v, v, v), x, v, numbers, x[0], (x, ints, x, x), 1, (v, v, 1))),
    ]
