"""Collectives over ranks in servers: the sums and tensors of all ranks, and little from one server to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.comm.rates import measure_rates
from tests.comm.exchanges import collectives, in_servers, own_of
from tests.parity.covering import Axis, spread
from tests.pool import processes

SIZES = [1, 3, 1000, 300_007]


@pytest.mark.parametrize(
    ("world", "servers", "size"), spread(Axis([(4, 2), (4, 4), (6, 3), (8, 2), (8, 4)], [(4, 2), (4, 4), (6, 3)]), SIZES)
)
def test_collectives(world: int, servers: int, size: int) -> None:
    """What every rank gets, bit for bit the same, and how much crosses."""
    answers = processes(world)(collectives, servers, size)
    for dtype, close in ((torch.float64, 1e-12), (torch.int64, 0.0), (torch.float32, 1e-6)):
        want = torch.stack([own_of(rank, size, dtype).double() for rank in range(world)]).sum(0).numpy()
        for one in answers:
            assert (one[str(dtype)] == answers[0][str(dtype)]).all()
        assert np.abs(answers[0][str(dtype)] - want).max() <= close * max(1.0, 1000 * world)
    own = [own_of(rank, 5, torch.float64).numpy() for rank in range(world)]
    for one in answers:
        assert all((a == b).all() for a, b in zip(one["gathered"], own, strict=True))
        assert one["one number"] == list(range(world))
        assert (one["folded"] == np.stack([own_of(rank, 6, torch.float64).numpy() for rank in range(world)]).max(0)).all()
        assert one["sent"] == 0
    assert np.allclose(answers[0]["table"], sum(own_of(rank, 12, torch.float64).view(3, 4).T.numpy() for rank in range(world)))
    members = world // servers
    for rank, one in enumerate(answers):
        first = rank // members * members
        assert one["within"].tolist() == [sum(range(first, first + members)), members]
    given = size * (8 + 8 + 4)
    most = given * servers * (servers - 1)
    crossed = sum(one["between"] for one in answers)
    if size * 4 // members > 1 << 16 and servers > 2:
        assert crossed <= 1.01 * given * 2 * (servers - 1)  # in pieces
    else:
        assert crossed == most


def rates(group: Group, servers: int) -> tuple[Any, ...]:
    found = measure_rates(in_servers(group, servers))
    return found.inside, found.between, found.sum_s


def test_rates() -> None:
    """What is not there has none; all ranks have the same."""
    both = processes(4)(rates, 2)
    assert all(one == both[0] for one in both) and all(value > 0 for value in both[0])
    inside, between, _ = processes(2)(rates, 2)[0]
    assert inside is None and between > 0
    inside, between, _ = processes(2)(rates, 1)[0]
    assert inside > 0 and between is None
