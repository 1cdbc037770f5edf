"""What attention does beside its folds, compiled: dropout of an edge's weights, and what backward reads of a destination.

What an edge draws depends on the original ids of its two ends and on the head, on nothing else.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.rng import Draw, philox_words, words_of


@numba.njit(inline="always")
def drop_edge(weight: Any, source: Any, destination: Any, heads: Any, draw: Any, keep: Any) -> None:  # pragma: no cover
    """``weight[h] *= keep``, or 0 where the draw drops (source, destination, h).

    Args:
        weight: [at least K].
        source, destination: original ids, uint64.
        draw: (seed, epoch, tag, threshold), uint64.
        keep: what kept weights are multiplied with.
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
        source_ids: int64 [S].
        sources: int32 [E], the source row of each edge.
        destination_ids: int64 [M].
        destinations: int32 [E].
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
