"""One more reader of a table of rows, without a table more in backward.

Autograd adds up the gradients of a tensor's readers; where one of them lies in memory from a pool it needs a further table for
the sum. ``engine.fork`` adds in place, but wants to know of both readers beforehand. A user's module does not say how often it
reads its rows, so each reader gets one branch of a fork and the next one finds the other branch on the tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.engine.fork import fork
from sargnn.engine.pool import Pool

_REST = "_sargnn_rest"


def reader(pool: Pool, x: Tensor) -> Tensor:
    """``x`` [N, F] for one more reader, rebuilt in the way that ``x`` is; ``x`` itself where there is no gradient to add up."""
    if not (pool.enabled and x.requires_grad and torch.is_grad_enabled()):
        return x
    rest, version = getattr(x, _REST, (x, x._version))
    if version != x._version:
        rest = x
    rows, other = fork(pool, rest)
    setattr(x, _REST, (other, x._version))
    return rows
