"""Philox for what is still compiled by Numba. It goes with the last of these loops."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(inline="always")
def philox_words(
    source: Any, destination: Any, group: Any, tag: Any, key0: Any, key1: Any
) -> Any:  # pragma: no cover - compiled
    """The four draws of one counter (see ``sargnn.rng``), for compiled code; words are uint64, their low 32 bits count."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = source, destination, group, tag
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (product1 >> np.uint64(32)) ^ c1 ^ key0
        c1 = product1 & mask
        c2 = (product0 >> np.uint64(32)) ^ c3 ^ key1
        c3 = product0 & mask
        key0 = (key0 + np.uint64(0x9E3779B9)) & mask
        key1 = (key1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3
