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
        pytest.raises(ConfigError, match=r"may not write to its input(.|\n)*test_refusals.py line"),
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
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True), "nn.AlphaDropout": nn.AlphaDropout(0.5),
    "dropout1d": nn.Dropout1d(0.5), "feature_alpha_dropout": nn.FeatureAlphaDropout(0.5), "rrelu": nn.RReLU(),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, True), "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rand_like": torch.rand_like, "randn_like": lambda x: torch.randn_like(x),
    "normal_": lambda x: torch.zeros_like(x).normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(0, 1), "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "gumbel_softmax": F.gumbel_softmax, "multinomial": lambda x: torch.multinomial(x.softmax(1), 1),
    "lstm": lambda x: nn.LSTM(2, 2, 2, dropout=0.5, batch_first=True).double()(x.view(-1, 2, 2)),
    "attention": lambda x: nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True).double()(*[x.view(-1, 2, 2)] * 3),
}  # fmt: skip


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
    "permuted": lambda x: x[torch.randperm(len(x))], "one": lambda x: x[0], "list": lambda x: x[[1, 0]],
    "index_select": lambda x: x.index_select(0, torch.tensor([1])), "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0),
    "tuple": lambda x: x[torch.tensor([2]), 0], "flipped": lambda x: torch.flip(x, [0, 1]),
}  # fmt: skip
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "first": lambda x: x[:2], "mask": lambda x: x[x[:, 0] > 0], "columns": lambda x: x[:, [1, 0]], "flip": lambda x: x.flip(1),
    "where": lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]], "roll": lambda x: x.roll(1, 1), "column": lambda x: x[:, 0],
    "in order": lambda x: x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)],
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
            assert ("picked by their number" in message) == (name in PICKS), (name, message)
            assert not message or "test_refusals.py line" in message
    assert not any(pool(1)(pick)[0].values())
