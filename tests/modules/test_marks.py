"""Which rows a result's rows are, whatever a module does to them on the way, and on workers with any number of rows."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sargnn
from sargnn.modules import tag
from sargnn.modules.tag import Count, Mark, Rows, mark_of, rows_of
from tests.modules.fake import calls_on, rows

W = torch.randn(4, 4, dtype=torch.float64)
GONE, UNKNOWN, PARTS = "gone", "unknown", "two for each row"
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int | str]] = {
    "elementwise": (lambda x: (x * 2 - x).exp(), 0),
    "with a parameter": (lambda x: x + W[0], 0),
    "compared": (lambda x: x == 0, 0),
    "broadcast": (lambda x: x.sum(1) * torch.ones(3, 1), 1),
    "linear": (lambda x: F.linear(x, W, W[0]), 0),
    "matmul": (lambda x: x @ W, 0),
    "of an outer product": (lambda x: W @ x.T, 1),
    "gram": (lambda x: x.T @ x, GONE),
    "gram by einsum": (lambda x: torch.einsum("nd,ne->de", x, x), GONE),
    "einsum": (lambda x: torch.einsum("nd,de->en", x, W), 1),
    "batched": (lambda x: torch.bmm(x.view(-1, 2, 2).transpose(0, 1), torch.ones(2, 2, 3, dtype=x.dtype)), 1),
    "heads": (lambda x: x.view(-1, 2, 2).flatten(1), 0),
    "reshape": (lambda x: x.reshape(x.shape[0], 2, 2), 0),
    "sum of a row": (lambda x: x.sum(1), 0),
    "sum of a row, last": (lambda x: x.sum(dim=-1, keepdim=True), 0),
    "sum over rows": (lambda x: x.sum(0), GONE),
    "mean": (lambda x: x.mean(), GONE),
    "mean over rows": (lambda x: x.mean(dim=0, keepdim=True), GONE),
    "norm": (lambda x: x.norm(dim=1), 0),
    "norm of columns": (lambda x: torch.linalg.vector_norm(x, dim=0), GONE),
    "logsumexp": (lambda x: x.logsumexp(0), GONE),
    "stacked": (lambda x: torch.stack([x, x]), 1),
    "stacked and summed": (lambda x: torch.sum(torch.stack([x, 2 * x], dim=0), dim=0), 0),
    "stacked and largest": (lambda x: torch.max(torch.stack([x, x], dim=0), dim=0)[0], 0),
    "stacked second": (lambda x: torch.stack([x, x], dim=1), 0),
    "transposed": (lambda x: x.t(), 1),
    "transposed twice": (lambda x: x.T.relu().transpose(0, 1), 0),
    "permuted": (lambda x: x.view(-1, 2, 2).permute(1, 2, 0), 2),
    "unsqueezed": (lambda x: x.unsqueeze(0), 1),
    "indexed by None": (lambda x: x[None, ..., 0], 1),
    "squeezed": (lambda x: x.unsqueeze(0).squeeze(0), 0),
    "squeezed altogether": (lambda x: x[:, :1].unsqueeze(0).squeeze(), 0),
    "column": (lambda x: x[:, 1], 0),
    "columns": (lambda x: x[..., 1:3], 0),
    "columns by list": (lambda x: x[:, [0, 1]], 0),
    "concatenated columns": (lambda x: torch.cat([x, x], dim=1), 0),
    "concatenated rows": (lambda x: torch.cat([x, x]), PARTS),
    "with a parameter's rows": (lambda x: torch.cat([x, W]), UNKNOWN),
    "split columns": (lambda x: x.split(2, dim=1)[1], 0),
    "chunked columns": (lambda x: x.chunk(2, -1)[1], 0),
    "unbound heads": (lambda x: x.view(-1, 2, 2).unbind(1)[0], 0),
    "selected": (lambda x: x.select(1, 0), 0),
    "narrowed": (lambda x: x.narrow(1, 1, 2), 0),
    "masked": (lambda x: x[x[:, 0] > 0], UNKNOWN),
    "embedding": (lambda x: F.embedding((x[:, 0] > 0).long(), W), 0),
    "a parameter's rows": (lambda x: W[(x[:, 0] > 0).long()], 0),
    "softmax": (lambda x: x.softmax(1), 0),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), 0),
    "zeros": (lambda x: torch.zeros_like(x), 0),
    "repeated": (lambda x: x.repeat(2, 1), PARTS),
    "columns repeated": (lambda x: x.repeat(1, 2), 0),
    "repeated one by one": (lambda x: x.repeat_interleave(2, dim=0), PARTS),
    "a new table": (lambda x: x.new_zeros(5, 4), GONE),
    "detached": (lambda x: x.detach(), 0),
    "data": (lambda x: x.data, 0),
    "in place": (lambda x: x.clone().mul_(2), 0),
}


def found(mark: Mark | None) -> int | str:
    if mark is None:
        return GONE
    return UNKNOWN if mark.rows is None else PARTS if mark.parts * mark.before == 2 else mark.dim


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])  # 4 is the width: no shape may decide by chance
def test_marks(name: str, count: int) -> None:
    function, want = CASES[name]
    with calls_on(torch.arange(count)):
        out = function(rows(count, 4, type=0))
    assert found(mark_of(out)) == want
    assert rows_of(out) == (Rows("nodes") if want == 0 else None)


def test_rows_that_fall_into_parts_are_rows_again() -> None:
    with calls_on(torch.arange(5)):
        parts = rows(5, 4).view(-1, 2)
        assert mark_of(parts) == Mark(Rows("nodes"), 0, 5, parts=2) and rows_of(parts) is None
        assert rows_of(parts.relu().view(-1, 4)) == Rows("nodes")


def test_rows_of_two_types() -> None:
    with calls_on(torch.arange(5), torch.arange(5)):
        one, other = rows(5, 4), rows(5, 4, type=1)
        both = mark_of(one + other)
        assert both is not None and both.rows is None and "other rows" in both.why
        joined = mark_of(torch.cat([one, other]))
        assert joined is not None and joined.rows is None and "types" in joined.why


def test_the_first_rows_are_those_of_a_later_layer() -> None:
    """Where the graph says how many there are; a number of one's own picks other rows on each worker."""
    later = Rows("nodes", level=1)
    with calls_on(torch.arange(8)):
        x, count = rows(8, 4), Count(4, 4, "nodes", later)
        assert rows_of(x[: x.size(0)]) == Rows("nodes") and rows_of(x[:count]) == rows_of(x.narrow(0, 0, count)) == later
        assert rows_of(x[:count] + rows(4, 4, level=1)) == later
        for part in (x[:3], x[3:], x[::2], *x.split([3, 5]), x.narrow(0, 0, 2)):
            mark = mark_of(part)
            assert mark is not None and mark.rows is None


def test_what_is_the_same_everywhere_has_none() -> None:
    with calls_on(torch.arange(8)):
        assert mark_of((W @ W).relu()) is None and rows_of(torch.rand(8)) is None


def test_a_number_of_rows_is_rounded_as_that_of_all_workers() -> None:
    count = Count(7, 149, "nodes", Rows("nodes"))
    assert [abs(-count) == 149, round(count) == 149, round(count, 1) == 149, round(count, -2) == 100] == [True] * 4
    assert (abs(-count) + 0).own == 7


def test_who_calls() -> None:
    """PyG's files lie beside PyTorch's, in a folder whose name begins alike."""
    beside = f"{os.path.dirname(torch.__file__)}_geometric/x.py"
    own = eval(compile("lambda call: call()", sargnn.__file__, "eval"))
    asked = eval(compile("lambda: (is_own_call(), is_users_call(), is_librarys_call())", beside, "eval"), vars(tag))
    assert asked() == (False, True, True) and own(asked) == (False, False, True)
