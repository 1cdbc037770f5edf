"""The pretended device refuses what a GPU refuses, and notes what makes the host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.device.pretended import DEVICE, MixedError, Present, host_of, noted


@pytest.fixture
def there() -> Iterator[Tensor]:
    """A table [3, 2] on the device."""
    with Present():
        yield torch.arange(6.0).reshape(3, 2).to(DEVICE)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3, 2),
        lambda x: torch.ones(3, 2).add_(x),
        lambda x: x[torch.tensor([0])],
        lambda x: torch.index_select(torch.ones(3, 2), 0, x[:, 0].long()),
        lambda x: torch.zeros(()).add_(x.sum()),
        lambda x: torch.mm(x, torch.ones(2, 2)),
        lambda x: torch.add(x, 1, out=torch.empty(3, 2)),
        lambda x: x + torch.tensor([1.0], device=DEVICE),
    ],
)
def test_mixes_fail(there: Tensor, mix: Callable[[Tensor], Any]) -> None:
    with pytest.raises(MixedError):
        mix(there)


def test_no_array_of_it(there: Tensor) -> None:
    with pytest.raises(RuntimeError):
        there.numpy()


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("read", lambda x: x.sum().item()),
        ("read", lambda x: bool((x > 0).any())),
        ("read", lambda x: float(x[0, 0])),
        ("read", lambda x: x.tolist()),
        ("read", Tensor.cpu),
        ("read", lambda x: torch.equal(x, x)),
        ("read", lambda x: torch.empty(3, 2).copy_(x)),
        ("size", torch.nonzero),
        ("size", lambda x: x[x > 0]),
        ("size", torch.unique),
        ("size", lambda x: torch.repeat_interleave(x, x[:, 0].long(), dim=0)),
        ("copy", lambda x: x.new_tensor([1.0])),
        ("copy", lambda x: x.copy_(torch.ones(3, 2))),
        ("copy", lambda x: torch.ones(2).to(DEVICE)),
        ("non_blocking", lambda x: torch.ones(2).to(DEVICE, non_blocking=True)),
    ],
)
def test_waits_are_noted(there: Tensor, kind: str, ask: Callable[[Tensor], Any]) -> None:
    with noted() as events:
        ask(there)
    assert [event.kind for event in events] == [kind]


def test_what_stays_there_is_not(there: Tensor) -> None:
    with noted() as events:
        total = there * 2 + torch.tensor(1.0) + torch.zeros(3, 2, device=DEVICE)
        total[1:].mul_(3)
        torch.where(total > 0, total, 0.0).index_select(0, torch.zeros(2, dtype=torch.int64, device=DEVICE))
        total.masked_fill_(total > 5, 0)
    assert not events
    assert host_of(total).tolist() == [[1, 3], [0, 0], [0, 0]]


def test_training_is_that_of_the_cpu() -> None:
    """Parameters move with their module; views, autograd and optimizers work on what lies there."""

    def train(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.ELU(), nn.Linear(3, 2)).to(device)
        optimizer, x = torch.optim.AdamW(model.parameters(), lr=0.1), torch.randn(5, 4).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(x[1:]).square().mean().backward()
            optimizer.step()
        return [host_of(parameter.detach()) for parameter in model.parameters()]

    with Present():
        away = train(DEVICE.type)
    for mine, other in zip(away, train("cpu"), strict=True):
        assert torch.equal(mine, other)


def test_products_of_a_gpu(there: Tensor) -> None:
    """bf16 factors, summed and stored in fp32."""
    half, out = there.to(torch.bfloat16), there.new_empty(3, 3)
    torch.mm(half, half.T, out_dtype=torch.float32, out=out)
    assert torch.equal(host_of(out), host_of(there) @ host_of(there).T)
