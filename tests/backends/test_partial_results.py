"""What kernels do for partial results: merge them, and add gradients at the sources that a block lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sargnn.backends import KERNELS
from sargnn.backends.base import Folds
from sargnn.backends.block import EdgeBlock, keep_edges
from sargnn.backends.choose import make_kernel
from sargnn.backends.cpu.folds import CpuFolds
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.bf16 import wide
from sargnn.graph.edge_columns import EdgeColumns

HEADS, WIDTH, DESTINATIONS, SOURCES = 3, 5, 12, 40
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
NO_RANK = Folds.no_rank


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype: torch.dtype) -> None:
    """Two halves of 30 scores, as one softmax over all; some rows have only one half, some none."""
    scores, rows = 20 * normal(DESTINATIONS, 30, HEADS), normal(DESTINATIONS, 30, HEADS, WIDTH, seed=1)
    has = torch.ones(DESTINATIONS, 30, dtype=torch.bool)
    has[0, :15], has[1, 15:], has[2] = False, False, False
    scores = scores.masked_fill(~has[:, :, None], -torch.inf)

    def softmax(part: slice) -> tuple[Tensor, Tensor, Tensor]:
        top = scores[:, part].amax(1)
        weights = torch.exp(scores[:, part] - torch.where(top == -torch.inf, 0, top)[:, None])
        sums = weights.sum(1)
        out = (weights[..., None] * rows[:, part]).sum(1) / torch.where(sums == 0, 1, sums)[..., None]
        return out.flatten(1), top, sums

    held = wide(dtype)
    out, top, sums = softmax(slice(0, 15))
    out[sums.repeat_interleave(WIDTH, 1) == 0] = torch.nan  # undefined there
    running = RunningSoftmax(out.to(held), top.to(held), sums.to(held))
    other, top, sums = softmax(slice(15, 30))
    wanted = torch.tensor([0, 1, 2, 5, 7, 11], dtype=torch.int32)
    CpuFolds().merge_softmax(
        wanted, other[wanted].to(dtype), torch.where(sums == 0, -torch.inf, top + sums.log())[wanted].to(held), running
    )
    want, top, sums = softmax(slice(0, 30))
    alone = softmax(slice(0, 15))[0]
    for i in range(DESTINATIONS):
        wish = want[i] if i in wanted else alone[i]
        if sums[i, 0] == 0:
            assert (running.denominator[i] == 0).all()
            continue
        bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
        assert (running.out[i].double() - wish).abs().max() <= bound
        if i in wanted:
            found = running.max_score[i] + running.denominator[i].log()
            assert (found.double() - (top[i] + sums[i].log())).abs().max() <= bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_maxima(dtype: torch.dtype) -> None:
    """Of equal values the smaller rank wins, whoever has it; what is not a number stays so; rows of nobody change nothing."""
    ranks = torch.tensor([2, 5, 9], dtype=torch.int32)
    cases = [  # held, its winner; value, its place -> value, winner
        (1.0, 4, 2.0, 1, 2.0, 5),
        (3.0, 4, 2.0, 1, 3.0, 4),
        (2.0, 4, 2.0, 0, 2.0, 2),
        (2.0, 4, 2.0, 2, 2.0, 4),
        (-torch.inf, NO_RANK, -7.0, 2, -7.0, 9),
        (1.0, 4, 9.0, NO_RANK, 1.0, 4),
        (1.0, 4, torch.nan, 0, torch.nan, 2),
        (1.0, 4, torch.nan, NO_RANK, torch.nan, NO_RANK),
    ]
    columns = list(zip(*cases, strict=True))
    best = torch.zeros(2, len(cases), dtype=dtype)
    winner = torch.full((2, len(cases)), 7, dtype=torch.int32)
    best[1], winner[1] = torch.tensor(columns[0]).to(dtype), torch.tensor(columns[1], dtype=torch.int32)
    CpuFolds().merge_maxima(
        torch.tensor([1], dtype=torch.int32), torch.tensor([columns[2]]).to(dtype),
        torch.tensor([columns[3]], dtype=torch.int32), ranks, best, winner,
    )  # fmt: skip
    assert torch.equal(torch.nan_to_num(best[1].double(), 77.0), torch.nan_to_num(torch.tensor(columns[4]).double(), 77.0))
    assert winner[1].tolist() == list(columns[5])
    assert not best[0].any() and (winner[0] == 7).all()


def test_winners() -> None:
    winner = torch.tensor([[0, 3, 4], [9, 8, NO_RANK]], dtype=torch.int32)
    out = torch.empty(2, 3, dtype=torch.int32)
    CpuFolds().take_winners(winner, torch.tensor([1, 0], dtype=torch.int32), torch.tensor([3, 4, 9], dtype=torch.int32), out)
    assert out.tolist() == [[2, NO_RANK, NO_RANK], [NO_RANK, 0, 1]]


def blocks(edges: int = 60) -> tuple[EdgeBlock, EdgeBlock]:
    """Edges from a few of many sources; listed, and not."""
    generator = torch.Generator().manual_seed(0)
    src = 3 * torch.randint(8, (edges,), generator=generator, dtype=torch.int32)
    dst = torch.randint(DESTINATIONS, (edges,), generator=generator, dtype=torch.int32).sort().values
    weight = torch.rand(edges, generator=generator)
    listed, whole = (
        EdgeBlock(src, dst, SOURCES, DESTINATIONS, columns=EdgeColumns.of({"weight": weight}), lists_sources=one)
        for one in (True, False)
    )  # fmt: skip
    assert listed.src_rows is not None and whole.src_rows is None
    return listed, whole


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_listed_sources_of_edges_that_are_kept(share: float) -> None:
    listed, _ = blocks()
    kept = torch.rand(listed.num_edges, generator=torch.Generator().manual_seed(1)) < share
    destinations = listed.dst_per_edge().to(torch.int32)
    assert listed.weight is not None
    want = EdgeBlock(
        listed.src[kept],
        destinations[kept],
        SOURCES,
        DESTINATIONS,
        columns=EdgeColumns.of({"weight": listed.weight[kept]}),
        lists_sources=True,
    )
    found = keep_edges(listed, kept)
    for name in ("src_rows", "src", "t_indptr", "t_dst", "t_edge", "t_weight"):
        one, other = getattr(found, name), getattr(want, name)
        assert one is not None and other is not None and torch.equal(one, other), name


@pytest.mark.parametrize("operation", ["sum", "max", "gat", "gatv2", "dot", "dot of one table"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_added_at_listed_sources(name: str, operation: str) -> None:
    """The same as those of a block that lists all, added to what is there; other rows stay as they are."""
    attend: Any = make_kernel(name).operation(operation.split()[0])
    if not getattr(attend, "lists_sources", False):
        assert (name, operation) == ("dgl", "max")
        return
    width = HEADS * WIDTH
    z, el, er = normal(SOURCES, width), normal(SOURCES, HEADS, seed=1), normal(DESTINATIONS, HEADS, seed=2)
    x, att, grad = normal(DESTINATIONS, width, seed=3), normal(width, seed=4), normal(DESTINATIONS, width, seed=5)
    keys, q = normal(SOURCES, 2 * HEADS, seed=8), normal(DESTINATIONS, 2 * HEADS, seed=9)
    parts = {
        "gat": ((z, el), er, None),
        "gatv2": ((z,), x, att),
        "dot": ((z, keys), q, None),
        "dot of one table": ((z,), x, None),
    }
    sources, local, params = parts.get(operation, ((z,), x, None))
    there = [normal(*rows.shape, seed=6 + number) for number, rows in enumerate(sources)]

    def gradients(block: EdgeBlock, *, add: bool) -> list[Tensor]:
        d_z, *others = (rows.clone() if add else torch.full_like(rows, torch.nan) for rows in there)
        if operation == "sum":
            attend.backward(block, grad, d_z, add=add)
            return [d_z]
        if operation == "max":
            best = torch.full((DESTINATIONS, width), -torch.inf, dtype=torch.float64)
            winner = torch.full((DESTINATIONS, width), NO_RANK, dtype=torch.int32)
            attend.forward(block, z, best, winner)
            attend.backward(block, grad, winner, d_z, add=add)
            return [d_z]
        running = RunningSoftmax.empty(z, DESTINATIONS, HEADS)
        attention, inputs = Attention(HEADS, 0.2, factor=0.7), AttentionInputs(sources, local, params)
        attend.forward(block, attention, inputs, running)
        running.out.masked_fill_((running.denominator == 0).repeat_interleave(WIDTH, 1), 0)
        records = attend.destination_records(er if operation == "gat" else None, running, grad)
        d_params = None if params is None else torch.zeros_like(params)
        into = AttentionGradients((d_z, *others), torch.zeros_like(local), d_params)
        attend.backward(block, attention, inputs, records, grad, into, add=add)
        return [d_z, *others]

    listed, whole = blocks()
    assert listed.src_rows is not None
    others = torch.ones(SOURCES, dtype=torch.bool)
    others[listed.src_rows.long()] = False
    for before, added, alone in zip(there, gradients(listed, add=True), gradients(whole, add=False), strict=False):
        assert torch.equal(added[others], before[others])
        torch.testing.assert_close(added, before + alone, rtol=1e-12, atol=1e-12)
        assert not torch.equal(added, before)
