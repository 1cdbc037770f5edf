"""Attention dropout, compiled: what an edge draws depends on the original ids of its two ends and on the head, on nothing else.

Letters: S source rows, M destination rows, E edges, K heads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.rng import Draw, philox_words


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
    if wide(weights.dtype) != weights.dtype:
        held = weights.to(wide(weights.dtype))
        return drop_weights(held, source_ids, sources, destination_ids, destinations, draw).to(weights.dtype)
    out = torch.empty_like(weights)
    _drop_weights(
        weights.numpy(),
        source_ids.numpy(),
        sources.numpy(),
        destination_ids.numpy(),
        destinations.numpy(),
        words_of(draw),
        weights.numpy().dtype.type(draw.scale),
        out.numpy(),
    )
    return out


def words_of(draw: Draw | None) -> tuple[Any, ...]:
    """A draw as the compiled loops take it: seed, epoch, tag, threshold; a threshold of 0 drops nothing."""
    if draw is None:
        return (*[np.uint64(0)] * 4,)
    return tuple(np.uint64(word) for word in (draw.seed, draw.epoch, draw.tag, draw.threshold))


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, ints, longs = torch.zeros(1, 16, dtype=wide(dtype)).numpy(), np.zeros(2, np.int32), np.zeros(2, np.int64)
    return [(_drop_weights, (x, longs, ints, longs, ints, words_of(None), x.dtype.type(1), x))]
