# ruff: noqa: E501 - tables of calls
"""What PyTorch shows to nobody: autograd functions, hooks, tensors from elsewhere, Python's own ``len``. Exact, or one message."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.modules.functions import count_lengths, length
from sargnn.modules.tag import Count, Rows, rows_of, tagged
from tests.modules.fake import calls_on
from tests.pool import pool

IDS = torch.arange(7)
CUTS = (0, 4, 4, 7)
ALL = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Scaled(torch.autograd.Function):
    """``y = x w``: row by row; the gradient of w is a sum over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] * w, (grads[0] * x).sum(0)


class Mean(Scaled):
    """Its gradient of w is another number for each worker."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] * w, (grads[0] * x).mean(0)


class Centred(Scaled):
    """Its gradient of a row depends on the other rows."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return (grads[0] - grads[0].mean(0)) * w, (grads[0] * x).sum(0)


class OverRows(Scaled):
    """Forward is none of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w / x.norm()


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x / x.sum(0)


def own_rows(group: Group) -> tuple[Tensor, Tensor]:
    ids = IDS[CUTS[group.rank] : CUTS[group.rank + 1]] if group.world > 1 else IDS
    return ids, tagged(ALL[ids].clone().requires_grad_(), Rows("nodes"))


def differentiated(group: Group, name: str) -> tuple[Tensor, Tensor, Tensor]:
    ids, x = own_rows(group)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with calls_on(ids, group=group, total=7):
        out = globals()[name].apply(x * 1.0, w)
        assert rows_of(out) == Rows("nodes")
        loss = (out * out).sum(1).sum() * (1 / group.world)
    loss.backward()
    assert x.grad is not None and w.grad is not None
    return ids, x.grad, group.sum_(w.grad.clone())


def test_an_autograd_function_of_rows() -> None:
    ((_, whole, of_weight),) = pool(1)(differentiated, "Scaled")
    for ids, grad, weight in pool(3)(differentiated, "Scaled"):
        torch.testing.assert_close(grad, whole[ids])
        torch.testing.assert_close(weight, of_weight)


@pytest.mark.parametrize("name", ["Mean", "Centred", "OverRows"])
def test_autograd_functions_that_are_none_of_each_row(name: str) -> None:
    with pytest.raises(AssertionError, match=rf"'{name}'.*row by row(.|\n)*test_unseen.py line"):
        pool(3)(differentiated, name)


NUMBERS: Iterator[int] = itertools.count(1)
ELSEWHERE: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda x: torch.from_numpy(np.asarray(x.detach().tolist())), "numpy()": lambda x: x.detach().numpy(),
    "script": lambda x: scripted(x) + 1, "item": lambda x: x[:, 0].item(), "bool": lambda x: bool(x.sum(1)),
    "iterated": lambda x: [row.sum() for row in x], "contains": lambda x: 0.5 in x,
    "hook": lambda x: (x * 1).register_hook(lambda grad: grad / grad.norm()),
    "random hook": lambda x: (x * 1).register_hook(lambda grad: grad * torch.rand_like(grad)),
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x) + x, "a number": lambda x: x.sum(0) / next(NUMBERS),
    "gradient": lambda x: torch.autograd.grad(x.sum(), x), "backward": lambda x: x.sum().backward(),
}  # fmt: skip
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "constant": lambda x: x + torch.from_numpy(np.arange(3.0)), "sum": lambda x: float(x.sum().detach()) + x.mean(0).sum().detach().item(),
    "hook": lambda x: (x * 1).register_hook(lambda grad: grad.clamp(-1, 1)), "silent": lambda x: (x * 1).register_hook(lambda grad: None),
    "asked": lambda x: bool((x > 0).any()),
}  # fmt: skip


def tried(group: Group, cases: str) -> dict[str, str]:
    ids, x = own_rows(group)
    found = {}
    for name, function in globals()[cases].items():
        with calls_on(ids, group=group, path=__file__, total=7):
            try:
                function(x * 1.0)
                found[name] = ""
            except ConfigError as error:
                found[name] = str(error)
    return found


def test_what_comes_from_elsewhere() -> None:
    for messages in pool(3)(tried, "ELSEWHERE"):
        for name, message in messages.items():
            assert "test_unseen.py line" in message, (name, message)
    for messages in pool(3)(tried, "ALLOWED"):
        assert not any(messages.values()), messages


class Counted(nn.Module):
    """Divides by ``len``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / len(x)


def divided(group: Group) -> Tensor:
    ids, x = own_rows(group)
    module = Counted()
    count_lengths(module)  # of this file
    with calls_on(ids, group=group, total=7):
        assert isinstance(length(x), Count) and length([1, 2]) == 2
        out: Tensor = module(x).detach()
    return out


def test_len_is_the_number_of_all_rows() -> None:
    for answer in pool(3)(divided):
        torch.testing.assert_close(answer, ALL.mean(0))


ROWS_OF_ALL: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.tensor([x.size(0), 3]), lambda x: x.new_tensor(x.size(0)), lambda x: torch.full((3,), x.size(0)),
    lambda x: torch.full_like(x.sum(0), x.size(0)), lambda x: torch.ones(3).fill_(x.size(0)),
    lambda x: torch.add(torch.ones(3), torch.ones(3), alpha=x.size(0)), lambda x: torch.where(torch.ones(3) > 0, x.size(0), 0),
    lambda x: torch.ones(3).masked_fill(torch.ones(3) > 0, x.size(0)), lambda x: torch.ones(3) * np.log(x.size(0)),
    lambda x: torch.ones(3) * int(x.size(0)), lambda x: torch.ones(3) * abs(round(x.size(0))),
    lambda x: torch.ones(3) * divmod(x.size(0), 2)[1], lambda x: torch.ones(3) * (x.size(0) << 1),
    lambda x: torch.ones(3) * x.size(0).bit_length(), lambda x: torch.ones(3) / float(x.size(0)),
    lambda x: torch.ones(3) * (2.0 * x.size(0)), lambda x: torch.ones(3) * x.shape.numel(),
    lambda x: torch.ones(3) * math.log(x.size(0)), lambda x: torch.ones(3) * math.isqrt(x.size(0)),
    lambda x: torch.ones(3) * math.gcd(x.size(0), 14), lambda x: torch.ones(3) * {7: 2.0}.get(x.size(0), 3.0),
    lambda x: torch.ones(3) * (x.size(0) in {4, 7}), lambda x: torch.ones(3) * int(f"{x.size(0)}"),
    lambda x: torch.ones(3) * list(range(9))[x.size(0)], lambda x: torch.ones(3) * len([0] * x.size(0)),
    lambda x: torch.ones(9)[: x.size(0)] * 2,
]  # fmt: skip


def with_numbers(group: Group) -> list[Tensor]:
    ids, x = own_rows(group)
    with calls_on(ids, group=group, total=7):
        return [function(x * 1.0).detach().double() for function in ROWS_OF_ALL]


def test_numbers_of_rows_in_calls() -> None:
    """They are those of all workers, unless they are the size of something."""
    (wanted,) = pool(1)(with_numbers)
    for answer in pool(3)(with_numbers):
        torch.testing.assert_close(answer, wanted)


def draws(group: Group) -> tuple[Tensor, ...]:
    """Of a variational autoencoder's rows, twice in an epoch and once in the next one."""
    ids, x = own_rows(group)
    found, calls = [], calls_on(ids, group=group, total=7)
    for _ in range(2):
        with calls:
            found.append((x + torch.randn_like(x) * x.exp()).detach())
    calls.engine.epoch += 1
    with calls:
        found.append((x + torch.randn_like(x) * x.exp()).detach())
    return ids, *found


def test_draws_of_rows_are_those_of_their_ids() -> None:
    ((_, first, again, later),) = pool(1)(draws)
    assert torch.equal(first, again) and not torch.allclose(first, later)
    for ids, own, own_again, own_later in pool(3)(draws):
        torch.testing.assert_close(own, first[ids])
        torch.testing.assert_close(own_again, first[ids])
        torch.testing.assert_close(own_later, later[ids])


def test_draws_have_the_moments_that_they_should() -> None:
    with calls_on(torch.arange(20_000)):
        x = tagged(torch.zeros(20_000, 5, dtype=torch.float64), Rows("nodes"))
        normal, uniform = torch.randn_like(x), torch.rand_like(x)
        exponential = torch.empty_like(x).exponential_(2.0)
        kept = torch.bernoulli(x + 0.3)
        alpha = torch.nn.functional.alpha_dropout(normal, 0.4, training=True)
    for drawn, mean, deviation in (
        (normal, 0.0, 1.0), (uniform, 0.5, 12**-0.5), (exponential, 0.5, 0.5), (kept, 0.3, 0.21**0.5), (alpha, 0.0, 1.0),
    ):  # fmt: skip
        assert abs(float(drawn.mean()) - mean) < 0.02 and abs(float(drawn.std()) - deviation) < 0.02
    assert abs(float(torch.corrcoef(normal.T)[0, 1])) < 0.03 and float(uniform.min()) >= 0 and float(uniform.max()) < 1
