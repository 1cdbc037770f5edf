"""Fused graph attention on a CPU, compiled with Numba: nothing of size edges x heads is ever stored.

    x_ji = LeakyReLU(el_j + er_i)       a_ji = exp(x_ji - m_i) / s_i       out_i = sum over j -> i of r_ji a_ji z_j

r_ji is attention dropout's factor, drawn by the original ids of the edge's ends, 1 without dropout. Forward walks destinations,
a batch of edges at a time through ``edge_softmax``; out is normalised at all times, so the softmax goes on from shard to shard
without a closing pass. Backward walks sources, one row of z and its error at a time:

    d z_j = sum of r a g_i      d el_j = sum of d x      d er_i = sum of d x      d x = a (r <g_i, z_j> - delta_i) LeakyReLU'

with delta_i = <g_i, out_i> per head. Sources are cut into one lane per thread with equal edges, and every lane has room of
its own for d er: two runs with the same number of threads give the same bits.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width, T lanes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.kernels.attention import RunningSoftmax
from sargnn.kernels.cpu_attention_code import (
    RECORD,
    edge_softmax,
    edge_weights,
    error_rows,
    fold_rows,
    row_of,
    score_errors,
)
from sargnn.rng import Draw, philox_words

BATCH = 256
"""Edges whose weights are held at a time."""


@numba.njit(inline="always")
def drop_edge(weight: Any, source: Any, destination: Any, heads: Any, draw: Any, keep: Any) -> None:  # pragma: no cover
    """``weight[h] *= keep``, or 0 where the draw drops (source, destination, h).

    Args:
        weight: [at least K]. source, destination: original ids, uint64.
        draw: (seed, epoch, tag, threshold), uint64. keep: what kept weights are multiplied with.
    """
    seed, epoch, tag, threshold = draw
    zero = weight.dtype.type(0)
    for group in range((heads + 3) // 4):
        words = philox_words(source, destination, np.uint64(group), tag, seed, epoch)
        for k in range(min(4, heads - 4 * group)):
            h = 4 * group + k
            weight[h] = weight[h] * keep if words[k] >= threshold else zero


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_attention(
    chunks: Any, rows: Any, indptr: Any, indices: Any, z: Any, el: Any, er: Any, slope: Any, heads: Any,
    source_ids: Any, destination_ids: Any, draw: Any, keep: Any, out: Any, top: Any, total: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Fold a block's edges into the running softmax of every listed destination.

    Args:
        chunks: int64, boundaries of runs of listed rows with about equal edges. rows: int32 [A]; empty: row a itself.
        indptr: int32 [A + 1]. indices: int32 [E].
        z: [S, K D]. el: [S, K]. er: [M, K]. slope: of LeakyReLU.
        source_ids: int64 [S], destination_ids: int64 [M], draw, keep: see ``drop_edge``; a threshold of 0 drops nothing.
        out: [M, K D]; rows whose ``total`` is 0 are overwritten. top, total: [M, K], maximum and denominator so far.
    """
    item, width = z.itemsize, z.shape[1] // heads
    everything = len(rows) == 0
    limit = np.int64(len(indices))
    dropping = draw[3] > 0
    for c in numba.prange(len(chunks) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), z.dtype)
        factor, carry = np.empty(heads, z.dtype), np.empty(heads, z.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            for start in range(np.int64(indptr[a]), np.int64(indptr[a + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[a + 1]))
                adds = np.int64(total[i, 0] != 0)
                edge_softmax((
                    weight.ctypes.data, el.ctypes.data, indices.ctypes.data, start, end, limit, heads,
                    er.ctypes.data + i * heads * item, top.ctypes.data + i * heads * item,
                    total.ctypes.data + i * heads * item, factor.ctypes.data, carry.ctypes.data,
                ), slope)  # fmt: skip
                if dropping:
                    mine = np.uint64(destination_ids[i])
                    for e in range(start, end):
                        drop_edge(weight[e - start], np.uint64(source_ids[indices[e]]), mine, heads, draw, keep)
                fold_rows((
                    out.ctypes.data + i * out.strides[0], z.ctypes.data, z.strides[0], indices.ctypes.data, start, end,
                    limit, heads, width, weight.ctypes.data, factor.ctypes.data, carry.ctypes.data, adds,
                ), slope)  # fmt: skip


@numba.njit(parallel=True, cache=True, nogil=True)
def write_attention_errors(
    bounds: Any, indptr: Any, indices: Any, z: Any, el: Any, records: Any, grad: Any, slope: Any, heads: Any,
    source_ids: Any, destination_ids: Any, draw: Any, keep: Any, d_z: Any, d_el: Any, d_er: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Errors of a block's source rows and scores, and of the destinations' scores.

    Args:
        bounds: int64 [T + 1], the source rows of each lane.
        indptr: int32 [S + 1], indices: int32 [E]: the destinations of each source.
        records: [M, 4 K], see ``cpu_attention_code.edge_weights``. grad: [M, K D].
        d_z: [S, K D], d_el: [S, K], overwritten. d_er: [T, M, K], added to.
    """
    item, width = z.itemsize, z.shape[1] // heads
    limit = np.int64(len(indices))
    dropping = draw[3] > 0
    for lane in numba.prange(len(bounds) - 1):
        weight = np.empty((BATCH, row_of(heads, item)), z.dtype)
        dropped = np.empty(weight.shape, z.dtype) if dropping else weight
        dots = np.empty(weight.shape, z.dtype)
        for j in range(bounds[lane], bounds[lane + 1]):
            d_el[j, :] = 0
            if indptr[j] == indptr[j + 1]:
                d_z[j, :] = 0
            own = el.ctypes.data + np.int64(j) * heads * item
            for start in range(np.int64(indptr[j]), np.int64(indptr[j + 1]), BATCH):
                end: Any = min(start + BATCH, np.int64(indptr[j + 1]))
                edge_weights((
                    weight.ctypes.data, own, records.ctypes.data, indices.ctypes.data, start, end, limit, heads,
                ), slope)  # fmt: skip
                if dropping:
                    mine = np.uint64(source_ids[j])
                    for e in range(start, end):
                        dropped[e - start, :] = weight[e - start]
                        drop_edge(dropped[e - start], mine, np.uint64(destination_ids[indices[e]]), heads, draw, keep)
                error_rows((
                    d_z.ctypes.data + np.int64(j) * d_z.strides[0], z.ctypes.data + np.int64(j) * z.strides[0],
                    grad.ctypes.data, grad.strides[0], indices.ctypes.data, start, end, limit, heads, width,
                    dropped.ctypes.data, dots.ctypes.data, np.int64(start > indptr[j]),
                ), slope)  # fmt: skip
                score_errors((
                    weight.ctypes.data, dropped.ctypes.data, dots.ctypes.data, own, records.ctypes.data,
                    indices.ctypes.data, start, end, heads, d_el.ctypes.data + np.int64(j) * heads * item,
                    d_er.ctypes.data + np.int64(lane) * d_er.strides[0],
                ), slope)  # fmt: skip


@numba.njit(parallel=True, cache=True, nogil=True)
def attention_records(er: Any, top: Any, total: Any, grad: Any, out: Any, records: Any) -> None:  # pragma: no cover
    """What backward reads of each destination: ``records[i] = (er_i, m_i, 1 / s_i, <grad_i, out_i> per head)``.

    Args:
        er, top, total: [M, K]. grad, out: [M, K D]. records: [M, 4 K]. Destinations without edges, s = 0, get 0 for 1 / s.
    """
    heads = er.shape[1]
    width = grad.shape[1] // heads
    zero, one = er.dtype.type(0), er.dtype.type(1)
    for i in numba.prange(er.shape[0]):
        record = records[i]
        record[:heads] = er[i]
        record[heads : 2 * heads] = top[i]
        for h in range(heads):
            record[2 * heads + h] = one / total[i, h] if total[i, h] != zero else zero
            error, row = grad[i, h * width : (h + 1) * width], out[i, h * width : (h + 1) * width]
            record[3 * heads + h] = dot(error, row)


@numba.njit(fastmath={"reassoc", "contract"})
def dot(x: Any, y: Any) -> Any:  # pragma: no cover
    total = x.dtype.type(0)
    for f in range(len(x)):
        total += x[f] * y[f]
    return total


@numba.njit(parallel=True, cache=True, nogil=True)
def _drop_weights(
    weight: Any, source_ids: Any, sources: Any, destination_ids: Any, destinations: Any, draw: Any, keep: Any, out: Any
) -> None:  # pragma: no cover
    for e in numba.prange(weight.shape[0]):
        out[e, :] = weight[e]
        source, destination = np.uint64(source_ids[sources[e]]), np.uint64(destination_ids[destinations[e]])
        drop_edge(out[e], source, destination, weight.shape[1], draw, keep)


def drop_weights(
    weights: Tensor, source_ids: Tensor, sources: Tensor, destination_ids: Tensor, destinations: Tensor, draw: Draw
) -> Tensor:
    """Attention dropout of weights [E, K] that stand in memory.

    Args:
        source_ids: int64 [S]. sources: int32 [E], the source row of each edge; destinations likewise.
    """
    out = torch.empty_like(weights)
    _drop_weights(
        weights.numpy(), source_ids.numpy(), sources.numpy(), destination_ids.numpy(), destinations.numpy(),
        words_of(draw), weights.numpy().dtype.type(draw.scale), out.numpy(),
    )  # fmt: skip
    return out


def records_of(er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
    """``Kernel.attention_records`` in one compiled pass."""
    own = torch.zeros_like(running.top) if er is None else er
    records = grad.new_empty(len(own), RECORD * own.shape[1])
    tensors = (own, running.top, running.total, grad, running.out, records)
    attention_records(*(tensor.detach().numpy() for tensor in tensors))
    return records


def words_of(draw: Draw | None) -> tuple[Any, ...]:
    """A draw as the compiled loops take it: seed, epoch, tag, threshold; a threshold of 0 drops nothing."""
    if draw is None:
        return (*[np.uint64(0)] * 4,)
    return tuple(np.uint64(word) for word in (draw.seed, draw.epoch, draw.tag, draw.threshold))


def lanes_of(indptr: np.ndarray, lanes: int) -> np.ndarray:
    """Boundaries, int64 [lanes + 1], of runs of rows with about equal work: a row counts as one edge."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + np.arange(rows + 1)
    bounds = np.searchsorted(work, np.linspace(0, work[-1], lanes + 1)).clip(0, rows)
    bounds[0], bounds[-1] = 0, rows
    return bounds


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, ints, longs = torch.zeros(1, 16, dtype=dtype).numpy(), np.zeros(2, np.int32), np.zeros(2, np.int64)
    scalar, draw = x.dtype.type(1), words_of(None)
    return [
        (attention_records, (x, x, x, x, x, x)),
        (_drop_weights, (x, longs, ints, longs, ints, draw, scalar, x)),
        (fold_attention, (longs, ints, ints, ints, x, x, x, scalar, 1, longs, longs, draw, scalar, x, x, x)),
        (write_attention_errors, (longs, ints, ints, x, x, x, x, scalar, 1, longs, longs, draw, scalar, x, x, x[None])),
    ]
