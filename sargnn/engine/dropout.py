"""Dropout whose mask is drawn by original id, so that it is the same on any number of workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE
from sargnn.rng import Draw


class _Dropout(torch.autograd.Function):
    """``y = x * mask / (1 - p)`` and ``dx = dy * mask / (1 - p)``. Saves nothing of size N x F: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, draw: Draw, work: Workspace) -> Tensor:
        ctx.ids, ctx.draw, ctx.work = ids, draw, work
        return _dropped(work, x, ids, draw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _dropped(ctx.work, grad, ctx.ids, ctx.draw), None, None, None


def _dropped(work: Workspace, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    with work.profile.span(NODEWISE):
        work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
        return work.rows.dropout(x.contiguous(), ids, draw)


def dropout(work: Workspace, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    """Drop elements of ``x`` [N, F] with probability ``draw.p`` and scale the others by 1 / (1 - p).

    Args:
        ids: int64 [N], the rows' original ids, below 2**32.
    """
    return _Dropout.apply(x, ids, draw, work)
