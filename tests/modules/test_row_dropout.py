"""Dropout in a module: the masks of the built-in stack, for rows in every shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.errors import ConfigError
from sargnn.modules.tag import Count, Rows, tagged
from sargnn.rng import Draw, Purpose, dropout_mask, dropout_rows, edge_mask
from tests.modules.fake import EDGES, calls_on, rows

COUNT, WIDTH, P = 9, 8, 0.4
IDS = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:COUNT]
ENDS = IDS[torch.arange(7) % 3], IDS[torch.arange(7) % 5]


def draw(number: int, purpose: Purpose = Purpose.DROPOUT, p: float = P) -> Draw:
    return Draw(3, 5, purpose, number, p)


def mask(number: int = 0, width: int = WIDTH, ids: Tensor = IDS) -> Tensor:
    return dropout_mask(ids, width, draw(number)).double() / (1 - P)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, P),
    "nn.Dropout": lambda x: nn.Dropout(P)(x),
    "torch.dropout": lambda x: torch.dropout(x, P, True),
    "in place": lambda x: F.dropout(x * 1, P, inplace=True),
    "heads": lambda x: F.dropout(x.view(-1, 2, 4), P).flatten(1),
    "parts": lambda x: F.dropout(x.view(-1, 2), P).view(-1, WIDTH),
    "transposed": lambda x: F.dropout(x.t(), P).t(),
    "stacked": lambda x: F.dropout(torch.stack([x], dim=0), P).sum(0),
    "fp32": lambda x: F.dropout(x.float(), P).double(),
    "bf16": lambda x: F.dropout(x.bfloat16(), P).double(),
}


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("form", FORMS)
def test_the_mask_is_drawn_by_original_id(form: str, mode: str) -> None:
    x = rows(COUNT, WIDTH, grad=True)
    with calls_on(IDS, mode=mode):
        out = FORMS[form](x)
    exact = {"fp32": 1e-6, "bf16": 1e-2}.get(form, 1e-14)
    torch.testing.assert_close(out, x * mask(), rtol=exact, atol=exact)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, mask(), rtol=exact, atol=exact)


def test_calls_are_numbered() -> None:
    """Those that drop nothing do not count; the next forward pass starts anew."""
    x, calls = rows(COUNT, WIDTH), calls_on(IDS)
    for _ in range(2):
        with calls:
            assert F.dropout(x, 0.0) is x and F.dropout(x, P, training=False) is x and nn.Dropout(P).eval()(x) is x
            for number in range(3):
                assert torch.equal(F.dropout(x, P), dropout_rows(x, IDS, draw(number)))


def test_one_vector_of_rows_and_first_rows() -> None:
    x = rows(COUNT)
    with calls_on(IDS):
        torch.testing.assert_close(F.dropout(x, P), x * mask(width=1)[:, 0])
        first = F.dropout(x[: Count(4, 4, "nodes", Rows("nodes", level=1))], P)
    torch.testing.assert_close(first, x[:4] * mask(1, 1)[:4, 0])
    late = rows(COUNT, WIDTH, level=1)  # more rows than that level has: those of an earlier one
    with calls_on(IDS):
        torch.testing.assert_close(F.dropout(late, P), late * mask())


def test_types_have_ids_of_their_own() -> None:
    other = torch.arange(50, 55)
    with calls_on(IDS, other):
        x = rows(5, WIDTH, type=1)
        torch.testing.assert_close(F.dropout(x, P), x * mask(ids=other))


@pytest.mark.parametrize("count", [0, 1])
def test_a_worker_with_few_rows(count: int) -> None:
    with calls_on(IDS[:count]):
        for form in FORMS.values():
            assert form(rows(count, WIDTH)).shape == (count, WIDTH)


def test_parameters_are_drawn_by_row_number() -> None:
    weight = torch.ones(6, 5, dtype=torch.float64, requires_grad=True)
    with calls_on(IDS):
        x = rows(COUNT, WIDTH)
        F.dropout(x, P)
        torch.testing.assert_close(F.dropout(weight, P), mask(1, 5, torch.arange(6)))
        assert F.dropout(torch.ones(()), P).dim() == 0


@pytest.mark.parametrize("shape", [(7, 4), (7, 4, 1), (7, 2, 2), (7,)])
def test_edges_are_drawn_by_their_ends(shape: tuple[int, ...]) -> None:
    x = tagged(torch.ones(shape, dtype=torch.float64).requires_grad_(), EDGES)
    width = 4 if len(shape) > 1 else 1
    with calls_on(IDS, edges=ENDS):
        F.dropout(rows(COUNT, WIDTH), P)  # of nodes: counted apart
        for number in range(2):
            x.grad = None
            want = edge_mask(*ENDS, width, draw(number, Purpose.ATTENTION_DROPOUT)).double().view(shape) / (1 - P)
            out = F.dropout(x, P)
            torch.testing.assert_close(out, want)
            out.sum().backward()
            torch.testing.assert_close(x.grad, want)


def test_expressions_per_edge_are_asked() -> None:
    class Lazy:
        def __torch_function__(self, *_: object) -> None:
            raise AssertionError("not through PyTorch")

        def dropped(self, given: Draw) -> Draw:
            return given

    with calls_on(IDS, edges=ENDS):
        F.dropout(rows(COUNT, WIDTH), P)
        assert F.dropout(Lazy(), P) == draw(0, Purpose.ATTENTION_DROPOUT)  # type: ignore[arg-type]
        F.dropout(tagged(torch.ones(7, 1), EDGES), P)
        assert nn.Dropout(P)(Lazy()) == draw(2, Purpose.ATTENTION_DROPOUT)


def test_all_and_none() -> None:
    x = rows(COUNT, WIDTH)
    with calls_on(IDS):
        assert not F.dropout(x, 1.0).any()
        with pytest.raises(ValueError, match="probability"):
            F.dropout(x, 1.5)


def test_dropout_in_place_writes_there() -> None:
    x = rows(COUNT, WIDTH) * 1
    before = x.clone()
    with calls_on(IDS):
        tagged(x, Rows("nodes"))
        out = F.dropout(x, P, inplace=True)
    assert out is x
    torch.testing.assert_close(x, before * mask())


def test_rows_that_are_no_longer_a_types_are_refused() -> None:
    with calls_on(IDS, IDS, path=__file__):
        with pytest.raises(ConfigError, match=r"test_row_dropout.py line \d+: rows of several types"):
            F.dropout(torch.cat([rows(COUNT, 4), rows(COUNT, 4, type=1)]), P)
        x = rows(COUNT, 4)
        with pytest.raises(ConfigError, match="a part of them"):
            F.dropout(x[x[:, 0] > 0], P)


def test_too_many_calls() -> None:
    x = rows(1, 1)
    with calls_on(IDS, path=__file__):
        for _ in range(256):
            F.dropout(x, P)
        with pytest.raises(ConfigError, match="call 257"):
            F.dropout(x, P)
