"""Rows with two readers: the sum of their errors, in place only where nobody else sees the table that is written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sargnn.engine.fork import fork
from sargnn.engine.pool import POOL
from sargnn.engine.rebuild import rebuilt_by, self_rows

ROWS, WIDTH = 2000, 256


@pytest.fixture(autouse=True)
def pooled() -> Iterator[None]:
    before, POOL.enabled = POOL.enabled, True
    POOL.reset()
    yield
    POOL.enabled = before
    POOL.reset()


class Scale(torch.autograd.Function):
    """Times ``factor``; its error is a table from the pool."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return POOL.empty_like(x).copy_(x).mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return POOL.empty_like(grad).copy_(grad).mul_(ctx.factor), None


def leaf(seed: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_errors_are_added_without_a_third_table() -> None:
    x = leaf(0)
    one, other = fork(x)
    (Scale.apply(one, 2.0) + Scale.apply(other, 3.0)).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 5.0))
    # Both outputs at once, then both errors; a sum of its own would be a third.
    assert POOL.most_used == 2 * ROWS * WIDTH * 4


@pytest.mark.parametrize("order", [0, 1])
def test_an_error_that_others_wait_for_is_left_alone(order: int) -> None:
    """A sum hands the same table to both its terms; the other one's reader runs after the fork."""
    x, waiting = leaf(0), leaf(1)
    late = Scale.apply(waiting, 7.0)  # made before the fork, so that its error is due after the fork's
    one, other = fork(torch.relu(x))
    plain, scaled = (one, Scale.apply(other, 3.0)) if order == 0 else (other, Scale.apply(one, 3.0))
    Scale.apply((plain + late) + scaled, 2.0).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, (x > 0) * 8.0)
    assert waiting.grad is not None and torch.equal(waiting.grad, torch.full_like(x, 14.0))


def test_both_readers_hand_on_the_same_error() -> None:
    x = leaf(0)
    one, other = fork(x)
    Scale.apply(one + other, 2.0).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 4.0))


def test_errors_that_are_not_the_pools() -> None:
    """Tables of autograd's own; and one row for all, which nobody can write to row by row."""
    x = leaf(0)
    one, other = fork(x)
    (one * 2 + other * 3).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 5.0))
    assert POOL.most_used == 0
    y = leaf(1)
    one, other = fork(y)
    (one.sum() + 3 * other.sum()).backward()
    assert y.grad is not None and torch.equal(y.grad, torch.full_like(y, 4.0))


def test_one_reader_alone_and_none() -> None:
    x = leaf(0)
    one, _ = fork(x)
    Scale.apply(one, 2.0).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2.0))
    with torch.no_grad():
        one, other = fork(x)
    assert one is x and other is x
    POOL.enabled = False
    assert fork(x)[0] is x


def test_it_is_rebuilt_as_before() -> None:
    class Plan:
        @staticmethod
        def self_rows(h: Tensor) -> Tensor:
            return h[:5]

    plan: Any = Plan()
    h = torch.relu(leaf(0))
    rebuilt_by(h, lambda: torch.relu(leaf(0)))
    for one in fork(h):
        rows = self_rows(plan, one)
        rebuild, version = rows._sargnn_rebuild  # type: ignore[attr-defined]
        assert version == rows._version and torch.equal(rebuild(), h[:5])
    h.detach().mul_(2)  # written to since: what it was rebuilt from is out of date
    assert not hasattr(fork(h)[0], "_sargnn_rebuild")
