"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A draw is a pure function of (seed, epoch) and of WHAT is drawn for: a node's original id (or an edge's two original ids),
the feature, the layer and the purpose. So a mask depends neither on the partition nor on the order of the work, the
backward pass draws it again instead of storing it, and CPU and GPU draw the same bits:

    key     = (seed, epoch; of several optimizer steps an epoch their number since the run's beginning)
    counter = (source id, destination id (0 for a node), feature or head // 4, purpose << 24 | layer << 16 | relation)

One call serves four neighbouring features or heads. An element is dropped where its 32-bit draw is below ``round(p * 2**32)``:
integers are compared, never floats.

Letters: N rows, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from sargnn import native
from sargnn.native import Entry

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_CHUNK_DRAWS = 1 << 14
_MASK = 0xFFFFFFFF
MAX_ID = 2**32
"""Original ids stay below this wherever something is drawn for them."""
_dropout = Entry("dropout", "x x N F", "ids l N", "draw draw", "out x N F")
_uniform = Entry("uniform", "ids l N", "draw draw", "bound float", "out f N F")
_pair_keys = Entry("pair_keys", "first l P, second l P, relation l P, tag int, seed int, epoch int, keys l P")


class Purpose(IntEnum):
    """What a draw is for: the top byte of the last counter word. Values are part of the contract; never reuse one."""

    INPUT_DROPOUT = 1
    DROPOUT = 2
    EDGES = 3
    ATTENTION_DROPOUT = 4
    EMBEDDING = 5
    LABELS = 6
    SPLIT = 7
    CONTENT = 8
    EDGE_DROPOUT = 9
    NEIGHBOURS = 10
    SAMPLE = 11
    SHUFFLE = 12
    PRELOAD = 13
    PAIR_SPLIT = 14
    PAIR_STEP = 15
    NEGATIVES = 16


@dataclass(frozen=True)
class Draw:
    """Everything but the ids and the features that a dropout mask depends on.

    Attributes:
        seed, epoch: from 0 to below 2**32.
        layer: 0 to 255.
        p: probability to drop an element, 0 <= p < 1.
    """

    seed: int
    epoch: int
    purpose: Purpose
    layer: int
    p: float

    @property
    def tag(self) -> int:
        """The last counter word."""
        return (int(self.purpose) << 24) | (self.layer << 16)

    @property
    def threshold(self) -> int:
        """An element is dropped where its draw is below this."""
        return min(round(self.p * 2.0**32), _MASK)

    @property
    def scale(self) -> float:
        """What a kept element is multiplied with."""
        return 1.0 / (1.0 - self.p)


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, seed: int, epoch: int) -> tuple[Tensor, ...]:
    """Philox 4x32-10 in plain tensor operations, on any device: the oracle of the compiled code.

    Takes, and gives four, int64 tensors of one (broadcastable) shape, values in [0, 2**32). The key is ``seed``, ``epoch``.
    """
    key0, key1 = seed & _MASK, epoch & _MASK
    for _ in range(_ROUNDS):
        # int64 products wrap, but their 64 bits are the right ones; the mask removes the sign's copies.
        product0, product1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        high0, low0 = (product0 >> 32) & _MASK, product0 & _MASK
        high1, low1 = (product1 >> 32) & _MASK, product1 & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _WEYL_0) & _MASK, (key1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def draw_words(ids: np.ndarray, seed: int, purpose: Purpose, epoch: int = 0) -> np.ndarray:
    """One draw for each id (int64 [N], below 2**32), int64 [N] in [0, 2**32)."""
    node = torch.from_numpy(ids)
    zeros = torch.zeros_like(node)
    words: np.ndarray = philox(node, zeros, zeros, torch.full_like(node, int(purpose) << 24), seed, epoch)[0].numpy()
    return words


def dropout_mask(ids: Tensor, width: int, draw: Draw) -> Tensor:
    """Which elements are kept, bool [N, F], in plain tensor operations. ``ids``: int64 [N], original ids below 2**32."""
    groups = torch.arange((width + 3) // 4, device=ids.device)
    node, group = torch.broadcast_tensors(ids[:, None], groups[None, :])
    zeros = torch.zeros_like(node)
    words = philox(node, zeros, group, torch.full_like(node, draw.tag), draw.seed, draw.epoch)
    return (torch.stack(words, dim=-1).flatten(1)[:, :width]) >= draw.threshold


def edge_mask(source_ids: Tensor, destination_ids: Tensor, heads: int, draw: Draw) -> Tensor:
    """Which attention weights are kept, bool [E, K], in plain tensor operations. Parallel edges share a draw.

    ``source_ids``, ``destination_ids``: int64 [E], original ids of each edge's ends, below 2**32.
    """
    groups = torch.arange((heads + 3) // 4, device=source_ids.device)[None, :].expand(len(source_ids), -1)
    words = philox(
        source_ids[:, None], destination_ids[:, None], groups, torch.full_like(groups, draw.tag), draw.seed, draw.epoch
    )
    return torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(1)[:, :heads] >= draw.threshold


def uniform_numbers(source_ids: Tensor, destination_ids: Tensor, width: int, draw: Draw, dtype: torch.dtype) -> Tensor:
    """Numbers from [0, 1), [N, W], for nodes, whose ``destination_ids`` are 0, or edges. Parallel edges share a draw.

    ``source_ids``, ``destination_ids``: int64 [N], original ids below 2**32.
    """
    out = torch.empty(len(source_ids), width, dtype=dtype, device=source_ids.device)
    groups = torch.arange((width + 3) // 4, device=source_ids.device)
    for start in range(0, len(source_ids), _CHUNK_DRAWS):  # counters are larger than the numbers
        run = slice(start, start + _CHUNK_DRAWS)
        source, group = torch.broadcast_tensors(source_ids[run, None], groups)
        words = philox(
            source,
            destination_ids[run, None].expand_as(source),
            group,
            torch.full_like(source, draw.tag),
            draw.seed,
            draw.epoch,
        )
        out[run] = (torch.stack(words, -1).flatten(1)[:, :width] >> 8).to(dtype) / 2**24
    return out


def neighbour_keys(source_ids: Tensor, destination_ids: Tensor, draw: Draw) -> Tensor:
    """What a node's in-edges are sorted by, int64 [E] in [0, 2**63); ids as of ``edge_mask``. Parallel edges share a draw."""
    zeros = torch.zeros_like(source_ids)
    words = philox(source_ids, destination_ids, zeros, torch.full_like(zeros, draw.tag), draw.seed, draw.epoch)
    return (words[0] << 31) | (words[1] >> 1)


def pair_keys(
    first: np.ndarray, second: np.ndarray, relation: np.ndarray, seed: int, purpose: Purpose, epoch: int = 0
) -> np.ndarray:
    """As ``neighbour_keys``, of pairs (int64 [P] each, ids below 2**32) instead of edges."""
    keys = np.empty(len(first), np.int64)
    _pair_keys(first, second, relation, int(purpose) << 24, seed, epoch, keys)
    return keys


def dropout_rows(x: Tensor, ids: Tensor, draw: Draw, out: Tensor | None = None) -> Tensor:
    """``out[i, f] = x[i, f] / (1 - p)`` where the draw keeps (i, f), else 0. Linear in ``x``, so also its own backward pass.

    Args:
        x: [N, F], fp32, fp64 or bf16; compiled on a CPU, plain operations elsewhere.
        ids: int64 [N], original ids of the rows, below 2**32.
        out: [N, F] to write to, may be ``x`` itself; allocated if not given.
    """
    if out is None:
        out = torch.empty_like(x)
    if x.device.type != "cpu":
        return torch.mul(x, dropout_mask(ids, x.shape[1], draw).to(x.dtype).mul_(draw.scale), out=out)
    if x.numel():
        _dropout(x, ids, native.draw_words(draw), out)
    return out


def uniform_rows(ids: Tensor, width: int, seed: int, bound: float) -> Tensor:
    """Uniform numbers in (-bound, bound), fp32 [N, width]: a pure function of the seed, the rows' ids (int64 [N], below 2**32)
    and the column.
    """
    out = torch.empty(len(ids), width)
    if out.numel():
        _uniform(ids, native.draw_words(Draw(seed, 0, Purpose.EMBEDDING, 0, 0.0)), bound, out)
    return out
