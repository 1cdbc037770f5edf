"""What all of a module's calls have in common: one answer on all workers, one stream of random numbers, and who may watch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.modules.calls import StockCalls
from sargnn.modules.edge_calls import noted_call
from sargnn.modules.expressions import Call, Field, decode, encode
from sargnn.modules.functions import describe_replaced
from sargnn.modules.functions import length as len  # noqa: A004 - as a user's file gets it
from sargnn.modules.lazy import EdgeRows, edge_rows
from sargnn.modules.row_operators import again_of
from sargnn.modules.session import paused
from sargnn.modules.tag import Mark, Rows, is_shared, rows_of, tagged
from tests.modules.fake import NODES, FakePlaces, calls_on, rows
from tests.pool import pool

VALUES = torch.tensor([3, 1, 4, 1, 5])
CUTS = (0, 3, 3, 5)


def ask(group: Group) -> list[Any]:
    own = slice(*CUTS[group.rank : group.rank + 2]) if group.world > 1 else slice(None)
    x = tagged(VALUES[own].clone(), Rows("nodes"))
    table = tagged(torch.stack([VALUES, -VALUES], 1)[own].double(), Rows("nodes"))
    with calls_on(torch.arange(5)[own], group=group):
        found: list[Any] = [
            bool((x == 5).any()), bool((x == 9).any()), bool(torch.all(x > 0)), bool((x > 1).all()), (x == 1).sum(), x.sum(),
            x.max(), torch.min(x), torch.count_nonzero(x == 1), (table > 0).any(0), (table > 0).all(dim=0, keepdim=True),
            table.amax(0), table.amin(dim=(0, 1)), table.min(), torch.equal(x, x), torch.allclose(table, table.abs()),
            bool(table.isnan().any()), torch.any(table > 4.5), (table != 0).sum(0),
        ]  # fmt: skip
        assert rows_of((table > 0).any(1)) == Rows("nodes") and len((table > 0).any(1)) == len(x)
        assert rows_of(table.max(1)[0]) == Rows("nodes")
    return [one.tolist() if isinstance(one, Tensor) else one for one in found]


def test_questions_about_all_rows_have_one_answer() -> None:
    """Also where a worker has no rows."""
    (one,) = pool(1)(ask)
    assert one[:6] == [True, False, True, False, 2, 14] and one[6:9] == [5, 1, 2] and one[14:16] == [True, False]
    for answer in pool(3)(ask):
        assert answer == one


def test_random_numbers_of_a_fixed_shape() -> None:
    """The same in each forward pass of an epoch, others in the next one; the generator outside goes on where it was."""
    calls = calls_on(torch.arange(3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with calls:
        first = torch.rand(8)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    with calls:
        assert torch.equal(torch.rand(8), first)
    calls.engine.epoch += 1
    with calls:
        assert not torch.equal(torch.rand(8), first)
    calls.engine.epoch, calls.engine.seed = 5, 4
    with calls:
        assert not torch.equal(torch.rand(8), first)


def draws(group: Group) -> list[Tensor]:
    """Numbers drawn before and after a wait, within two passes."""
    found = []
    for _ in range(2):
        with calls_on(torch.arange(3), group=group):
            found.append(torch.rand(4))
            group.sum_(torch.ones(1))
            found.append(torch.rand(4))
        group.sum_(torch.ones(1))
    return found


def test_random_numbers_do_not_depend_on_who_runs_meanwhile() -> None:
    """The generator is one for a process, and other ranks draw from it too."""
    (alone,) = pool(1)(draws)
    assert torch.equal(alone[0], alone[2]) and torch.equal(alone[1], alone[3])
    for drawn in pool(4)(draws):
        assert all(map(torch.equal, drawn, alone))


def test_results_are_observed() -> None:
    seen: list[tuple[str, str, Tensor, Mark | None, list[Tensor]]] = []
    base = calls_on(torch.arange(3))
    calls = StockCalls(base.engine, FakePlaces(torch.arange(3)), path=__file__, observe=lambda *one: seen.append(one))
    x, weight = rows(3, 4), torch.ones(4, 2, dtype=torch.float64)
    for _ in range(2):
        seen.clear()
        with calls:
            h = x @ weight
            h.size(0)
            h.sum(0), weight.T
    assert [name for name, *_ in seen] == ["matmul", "sum", "T"]
    assert seen[0][3] == Mark(Rows("nodes"), 0, 3) and seen[1][3] is None and seen[0][2] is h
    assert seen[0][1].startswith(f"{__file__} line ") and seen[0][4][0] is x and seen[1][4][0] is h


def test_paused() -> None:
    x = rows(300, 8)
    with calls_on(torch.arange(300)):
        with paused():
            assert rows_of(x * 2) is None and rows_of(torch.rand_like(x)) is None
        assert rows_of(x * 2) == Rows("nodes")
    with paused():
        assert rows_of(x * 2) is None


def test_expressions_that_are_no_tensors_get_their_own_calls() -> None:
    class Lazy:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> str:
            assert not torch._C._len_torch_function_stack()
            return func.__name__

    with calls_on(torch.arange(3)):
        assert F.leaky_relu(Lazy(), 0.2) == "leaky_relu"  # type: ignore[arg-type]
        assert F.batch_norm(Lazy(), None, None, training=True) == "batch_norm"  # type: ignore[arg-type]


def test_what_is_replaced() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Dropout(0.25), nn.Sequential(nn.Dropout(0)))
    dropout, norm = describe_replaced(module)
    assert dropout.startswith("nn.Dropout 3 (p = 0.25), 4.0 (p = 0): ") and norm.startswith("nn.BatchNorm 1: ")
    assert describe_replaced(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_calls_mean_the_same_for_any_number_of_rows(count: int) -> None:
    """Sizes that stand for -1, dimensions that are squeezed, and what is a table of its own."""
    with calls_on(torch.arange(count)):
        x = rows(count, 6)
        assert x.view(len(x), 2, -1).shape == x.view((x.shape[0], -1, 3)).shape == (count, 2, 3)
        assert x.view(-1, 2, 3).reshape(x.size(0), -1).shape == (count, 6)
        assert x.unsqueeze(0).squeeze(0).squeeze(0).shape == x.squeeze(dim=(0, 1)).shape == (count, 6)
        columns = tagged(x[:, :2], NODES, shared=True)
        assert columns.contiguous().data_ptr() != x.data_ptr() or not count
        assert not is_shared(columns.contiguous()) and is_shared(tagged(x, NODES, shared=True).contiguous())
        rebuilt = (
            again_of(tagged(rows(count, 6)[:, :2], NODES, shared=True)),
            again_of(tagged(rows(count, 6), NODES, shared=True)),
        )
        assert rebuilt[0] is None and rebuilt[1] is not None


def test_a_weight_is_no_field_of_as_many_edges() -> None:
    class Graph:
        rows_key, device = Rows("edges"), torch.device("cpu")

        def num_edges(self) -> int:
            return 4

    field = Field((4,), torch.float64, "e", torch.rand(4, 4, dtype=torch.float64))
    edges = edge_rows(Graph(), field)  # type: ignore[arg-type]
    weight = torch.rand(4, 4, dtype=torch.float64)
    for mapped in (noted_call(F.linear, (edges, weight), {}), noted_call(torch.matmul, (edges, weight), {})):
        assert isinstance(mapped, EdgeRows) and isinstance(mapped.node, Call) and mapped.node.args[1] is weight
    own = tagged(torch.ones(4, 4, dtype=torch.float64), Rows("edges"))
    table = noted_call(torch.mul, (edges, own), {})  # each edge with its own row
    assert isinstance(table.node, Call) and isinstance(table.node.args[1], Field)


def test_whole_numbers_travel_as_their_bits() -> None:
    for numbers in (torch.arange(8)[::3][:1], torch.tensor(5).expand(1), torch.arange(6).view(2, 3), torch.arange(0)):
        for dtype in (torch.float32, torch.float64):
            assert torch.equal(decode(encode(numbers, dtype), numbers.dtype, tuple(numbers.shape[1:])), numbers)
