"""Branches of a table for one reader after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.backends.memory import Pool
from sargnn.engine.rebuild import rebuild_of, rebuilt_by
from sargnn.modules.row_operators import reader

N, F = 600, 500  # large enough for the pool


def table() -> Tensor:
    return torch.randn(N, F, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_gradients_are_added_up(readers: int) -> None:
    pool, x = Pool(), table()
    total = sum((k + 1) * reader(pool, x) for k in range(readers))
    assert isinstance(total, Tensor)
    total.backward(torch.ones(N, F))
    assert x.grad is not None and (x.grad == readers * (readers + 1) / 2).all()


def test_they_are_added_in_place() -> None:
    """Three readers whose gradients come from the pool: two tables, where autograd would need a third."""

    class FromPool(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, pool: Pool) -> Tensor:
            ctx.pool = pool  # type: ignore[attr-defined]
            return x.sum()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
            pool: Pool = ctx.pool  # type: ignore[attr-defined]
            return pool.empty(N, F, grad).fill_(1), None

    pool, x = Pool(), table() * 1
    total = sum(FromPool.apply(reader(pool, x), pool) for _ in range(3))
    assert isinstance(total, Tensor)
    total.backward()
    assert pool.most_used == 2 * N * F * 4


def test_a_branch_is_rebuilt_as_its_table_and_starts_anew_after_a_write() -> None:
    pool, x = Pool(), table() * 1
    rebuilt_by(x, lambda: x)
    assert rebuild_of(reader(pool, x)) is not None and rebuild_of(reader(pool, x)) is not None
    x.add_(1)
    after = reader(pool, x)
    assert torch.equal(after, x) and rebuild_of(after) is None


def test_where_there_is_no_gradient_to_add_up() -> None:
    x = table()
    assert reader(Pool(enabled=False), x) is x and reader(Pool(), x.detach()).grad_fn is None
    with torch.no_grad():
        assert reader(Pool(), x) is x
