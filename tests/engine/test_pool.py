"""Memory that is used again: only when nobody holds it, and never more than was in use at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sargnn.backends.memory import Pool

ROWS, WIDTH = 3000, 256
LIKE = torch.zeros(1)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_free_storage_comes_again(pool: Pool) -> None:
    first = pool.empty(ROWS, WIDTH, LIKE)
    where = place(first)
    other = pool.empty(ROWS, WIDTH, LIKE)
    assert place(other) != where
    del first
    again = pool.empty(ROWS, WIDTH, LIKE)
    assert place(again) == where and again.shape == (ROWS, WIDTH) and again.is_contiguous()
    again.fill_(7)
    del again
    zeros = pool.zeros(ROWS, WIDTH, LIKE)
    assert place(zeros) == where and zeros.abs().max() == 0


@pytest.mark.parametrize("hold", [lambda t: t[5:9], lambda t: t.numpy(), lambda t: t.detach(), lambda t: t.view(-1)[::2]])
def test_whatever_holds_it_keeps_it(pool: Pool, hold: Any) -> None:
    tensor = pool.empty(ROWS, WIDTH, LIKE)
    where, held = place(tensor), hold(tensor)
    del tensor
    assert place(pool.empty(ROWS, WIDTH, LIKE)) != where
    del held
    assert place(pool.empty(ROWS, WIDTH, LIKE)) == where


def test_a_tensor_saved_for_backward_keeps_it(pool: Pool) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            out = pool.empty_like(x).copy_(x)
            ctx.save_for_backward(out)
            return out.square()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    total = Square.apply(x).sum()
    for _ in range(3):
        pool.empty(ROWS, WIDTH, LIKE).fill_(7)
    total.backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.detach())


def test_what_comes_out_may_be_written_to(pool: Pool) -> None:
    class Map(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return pool.empty_like(x).copy_(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    out = Map.apply(x)
    out.mul_(3)
    out.sum().backward()
    assert x.grad is not None and float(x.grad.min()) == 3


def test_it_never_holds_more_than_was_in_use_at_once(pool: Pool) -> None:
    generator = torch.Generator().manual_seed(0)
    live: list[Tensor] = []
    most = 0
    for step in range(400):
        if live and int(torch.randint(3, (1,), generator=generator)) == 0:
            live.pop(int(torch.randint(len(live), (1,), generator=generator)))
        elif len(live) < 6:
            live.append(pool.empty(ROWS + 100 * (step % 5), WIDTH, LIKE))
        most = max(most, sum(t.numel() * 4 for t in live))
        assert pool.held_bytes() <= most
    live.clear()
    assert pool.held_bytes() > 0
    pool.reset()
    assert pool.held_bytes() == 0


def test_a_pytorch_that_counts_otherwise_gets_fresh_memory(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sargnn.backends.memory._use_count", lambda storage: 1)
    for _ in range(3):
        pool.empty(ROWS, WIDTH, LIKE)
    assert pool.held_bytes() == 0


def test_small_ones_other_types_and_a_pool_that_is_off(pool: Pool) -> None:
    pool.empty(10, 10, LIKE)
    assert pool.held_bytes() == 0
    pool.empty(ROWS, WIDTH, LIKE)
    double = pool.empty(ROWS, WIDTH, LIKE.double())
    assert double.dtype == torch.float64
    pool.reset()
    pool.enabled = False
    pool.empty(ROWS, WIDTH, LIKE)
    assert pool.held_bytes() == double.numel() * 8
