"""Sums take the memory of a value without a name, and of none that has one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.modules.calls import StockCalls
from sargnn.modules.row_calls import most_references
from sargnn.modules.tag import Rows, tagged
from tests.modules.fake import FakePlaces

N, F = 4096, 96  # a table that the pool serves


def test_names_are_told() -> None:
    assert most_references() > 0


@pytest.mark.parametrize("held", ["name", "list", "attribute", "view", "nothing"])
def test_only_what_nobody_holds_is_written_to(held: str) -> None:
    engine = Engine(Group.single(), EngineSettings(mode="sar", dtype=torch.float64))
    calls = StockCalls(engine, FakePlaces(torch.arange(N)), path=None)
    weight = torch.randn(F, F, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x = torch.randn(N, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given = tagged(x.clone().requires_grad_(), Rows("nodes"))

    def mapped() -> Tensor:
        return torch.nn.functional.linear(given, weight)

    before = engine.pool.held_bytes()
    with calls:
        if held == "nothing":
            kept, total = None, mapped() + given
        elif held == "name":
            kept = mapped()
            total = kept + given
        elif held == "list":
            holder = [mapped()]
            total = holder[0] + given
            kept = holder[0]
        elif held == "attribute":
            thing = SimpleNamespace(rows=mapped())
            total = thing.rows + given
            kept = thing.rows
        else:
            kept = mapped()
            rows, kept = kept, kept.view(F, N)
            total = rows + given
            kept = kept.view(N, F)
    wanted = x @ weight.detach().T
    torch.testing.assert_close(total.detach(), wanted + x)
    if kept is not None:
        torch.testing.assert_close(kept.detach(), wanted)
    tables = (engine.pool.held_bytes() - before) / (N * F * 8)
    assert tables == (1 if held == "nothing" else 2)
    total.sum().backward()
    assert given.grad is not None and weight.grad is not None
    torch.testing.assert_close(given.grad, 1 + weight.detach().sum(0).expand(N, F))
    torch.testing.assert_close(weight.grad, x.sum(0).expand(F, F))
