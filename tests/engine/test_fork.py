"""Rows with two readers: the sum of their gradients, in place only where nobody else sees the table that is written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sargnn.backends.memory import Pool
from sargnn.engine.rebuild import rebuilt_by, self_rows
from sargnn.engine.row_functions import fork

ROWS, WIDTH = 2000, 256


@pytest.fixture
def pool() -> Pool:
    return Pool()


class Scale(torch.autograd.Function):
    """Times ``factor``; its gradient is a table from the pool."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, pool: Pool) -> Tensor:
        ctx.factor, ctx.pool = factor, pool
        return pool.empty_like(x).copy_(x).mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.pool.empty_like(grad).copy_(grad).mul_(ctx.factor), None, None


def leaf(seed: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_gradients_are_added_without_a_third_table(pool: Pool) -> None:
    x = leaf(0)
    one, other = fork(pool, x)
    (Scale.apply(one, 2.0, pool) + Scale.apply(other, 3.0, pool)).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 5.0))
    # Both outputs at once, then both gradients; a sum of its own would be a third.
    assert pool.most_used == 2 * ROWS * WIDTH * 4


@pytest.mark.parametrize("order", [0, 1])
def test_a_gradient_that_others_wait_for_is_left_alone(pool: Pool, order: int) -> None:
    """A sum hands the same table to both its terms; the other one's reader runs after the fork."""
    x, waiting = leaf(0), leaf(1)
    late = Scale.apply(waiting, 7.0, pool)  # made before the fork, so that its gradient is due after the fork's
    one, other = fork(pool, torch.relu(x))
    plain, scaled = (one, Scale.apply(other, 3.0, pool)) if order == 0 else (other, Scale.apply(one, 3.0, pool))
    Scale.apply((plain + late) + scaled, 2.0, pool).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, (x > 0) * 8.0)
    assert waiting.grad is not None and torch.equal(waiting.grad, torch.full_like(x, 14.0))


def test_both_readers_hand_on_the_same_gradient(pool: Pool) -> None:
    x = leaf(0)
    one, other = fork(pool, x)
    Scale.apply(one + other, 2.0, pool).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 4.0))


def test_gradients_that_are_not_the_pools(pool: Pool) -> None:
    """Tables of autograd's own; and one row for all, which nobody can write to row by row."""
    x = leaf(0)
    one, other = fork(pool, x)
    (one * 2 + other * 3).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 5.0))
    assert pool.most_used == 0
    y = leaf(1)
    one, other = fork(pool, y)
    (one.sum() + 3 * other.sum()).backward()
    assert y.grad is not None and torch.equal(y.grad, torch.full_like(y, 4.0))


def test_one_reader_alone_and_none(pool: Pool) -> None:
    x = leaf(0)
    one, _ = fork(pool, x)
    Scale.apply(one, 2.0, pool).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2.0))
    with torch.no_grad():
        one, other = fork(pool, x)
    assert one is x and other is x
    pool.enabled = False
    assert fork(pool, x)[0] is x


def test_it_is_rebuilt_as_before(pool: Pool) -> None:
    class Plan:
        @staticmethod
        def self_rows(h: Tensor) -> Tensor:
            return h[:5]

    plan: Any = Plan()
    h = torch.relu(leaf(0))
    rebuilt_by(h, lambda: torch.relu(leaf(0)))
    for one in fork(pool, h):
        rows = self_rows(plan, one)
        rebuild, version = rows._sargnn_rebuild  # type: ignore[attr-defined]
        assert version == rows._version and torch.equal(rebuild(), h[:5])
    h.detach().mul_(2)  # written to since: what it was rebuilt from is out of date
    assert not hasattr(fork(pool, h)[0], "_sargnn_rebuild")
