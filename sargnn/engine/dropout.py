"""Dropout whose mask is drawn by original id, so that it is the same on any number of workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.profile import NODEWISE, Profile
from sargnn.rng import Draw, dropout_rows


class _Dropout(torch.autograd.Function):
    """``y = x * mask / (1 - p)`` and ``dx = dy * mask / (1 - p)``. Saves nothing of size N x F: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, draw: Draw, profile: Profile) -> Tensor:
        ctx.ids, ctx.draw, ctx.profile = ids, draw, profile
        with profile.span(NODEWISE):
            profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            return dropout_rows(x.contiguous(), ids, draw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.profile.span(NODEWISE):
            ctx.profile.work(NODEWISE, 2 * grad.numel() * grad.element_size())
            return dropout_rows(grad.contiguous(), ctx.ids, ctx.draw), None, None, None


def dropout(profile: Profile, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    """Drop elements of ``x`` [N, F] with probability ``draw.p`` and scale the others by 1 / (1 - p).

    Args:
        ids: int64 [N], the rows' original ids, below 2**32.
    """
    return _Dropout.apply(x, ids, draw, profile)
