# ruff: noqa: E501 - tables of calls
"""What a module may not do with rows that are spread over workers: one message that names the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.modules.tag import Rows, is_shared, tagged
from tests.modules.fake import calls_on, rows
from tests.pool import pool

IDS = torch.arange(6)


def increase(x: Tensor) -> None:
    x += 1


def assign(x: Tensor) -> None:
    x[:, 0] = 1


def set_data(x: Tensor) -> None:
    x.data = torch.zeros(6, 4, dtype=x.dtype)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "+=": increase, "x[...] =": assign, "mul_": lambda x: x.mul_(2), "out=": lambda x: torch.exp(torch.ones_like(x), out=x),
    "relu": lambda x: F.relu(x, inplace=True), "nn.ReLU": nn.ReLU(inplace=True), "nn.Dropout": nn.Dropout(0.5, inplace=True),
    "elu": lambda x: F.elu(x, inplace=True), "view": lambda x: x.view(-1, 2, 2).add_(1), "column": lambda x: x[:, 0].zero_(),
    "detached": lambda x: x.detach().add_(1), "transposed": lambda x: x.T.add_(1),
    "data": lambda x: x.data.zero_(), "data =": set_data, "functional": lambda x: torch.relu_(x),
    "one row": lambda x: x[0].zero_(), "part": lambda x: x[2:].add_(1), "split": lambda x: x.split(2, dim=1)[1].fill_(0),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_an_input(name: str) -> None:
    x = tagged(rows(6, 4), Rows("nodes"), shared=True)
    before = x.clone()
    with (
        calls_on(IDS, path=__file__),
        pytest.raises(ConfigError, match=r"write to its input(.|\n)*test_refusals.py line"),
    ):
        WRITES[name](x)
    assert torch.equal(x, before)


def test_writes_to_what_is_the_modules_own() -> None:
    x = tagged(rows(6, 4), Rows("nodes"), shared=True)
    with calls_on(IDS):
        for own in (x.clone(), x * 2, x.contiguous().relu(), x[torch.ones(6, dtype=torch.bool)]):
            assert not is_shared(own)
            own += 1
            own[:, 0] = 0


RANDOM: dict[str, Callable[[Tensor], Any]] = {
    "poisson": lambda x: torch.poisson(x.abs()), "multinomial": lambda x: torch.multinomial(x.softmax(1), 1),
    "randperm": lambda x: torch.randperm(x.size(0)), "random_": lambda x: torch.empty_like(x).random_(),
    "lstm": lambda x: nn.LSTM(2, 2, 2, dropout=0.5, batch_first=True).double()(x.view(-1, 2, 2)),
}  # fmt: skip
"""What no rule draws."""


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_for_rows(name: str) -> None:
    with (
        calls_on(IDS, path=__file__),
        pytest.raises(ConfigError, match=r"differ with the number(.|\n)*test_refusals.py line \d+"),
    ):
        RANDOM[name](rows(6, 4))


def test_random_functions_that_draw_nothing() -> None:
    x = rows(6, 4)
    with calls_on(IDS):
        for module in (nn.AlphaDropout(0.5), nn.Dropout1d(0.5), nn.RReLU()):
            assert torch.isfinite(module.eval()(x)).all()
        assert F.alpha_dropout(x, 0.0, True) is not None
        nn.LSTM(2, 2, 2, batch_first=True).double()(x.view(-1, 2, 2))
        nn.LSTM(2, 2, 1, batch_first=True).double()(x.view(-1, 2, 2))
        nn.MultiheadAttention(2, 1, batch_first=True).double()(*[x.view(-1, 2, 2)] * 3)
        torch.rand_like(torch.ones(3))


PICKS: dict[str, Callable[[Tensor], Any]] = {
    "permuted": lambda x: x[torch.tensor([2, 0, 1])], "one": lambda x: x[0], "list": lambda x: x[[1, 0]],
    "index_select": lambda x: x.index_select(0, torch.tensor([1])), "first": lambda x: x[:2], "step": lambda x: x[::2],
    "tuple": lambda x: x[torch.tensor([2]), 0], "narrow": lambda x: x.narrow(0, 0, 2), "split": lambda x: x.split(2),
}  # fmt: skip
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "first": lambda x: x[: x.size(0)], "mask": lambda x: x[x[:, 0] > 0], "columns": lambda x: x[:, [1, 0]], "flip": lambda x: x.flip(1),
    "where": lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]], "roll": lambda x: x.roll(1, 1), "column": lambda x: x[:, 0],
    "in order": lambda x: x[torch.arange(x.size(0)), torch.zeros(x.size(0), dtype=torch.long)],
    "index_select": lambda x: x.index_select(1, torch.tensor([1])), "none": lambda x: x[None], "all": lambda x: x[...],
}  # fmt: skip


def pick(group: Group) -> dict[str, str]:
    found = {}
    with calls_on(IDS, group=group, path=__file__):
        for name, function in {**PICKS, **{f"{name} (allowed)": one for name, one in ALLOWED.items()}}.items():
            try:
                function(rows(6, 4))
                found[name] = ""
            except ConfigError as error:
                found[name] = str(error)
    return found


def test_picks_by_number() -> None:
    for messages in pool(2)(pick):
        for name, message in messages.items():
            assert ("by their number" in message) == (name in PICKS), (name, message)
            assert not message or "test_refusals.py line" in message
    assert not any(pool(1)(pick)[0].values())
