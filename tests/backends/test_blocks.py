"""Blocks of edges: of some of them, and in the order of their sources."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds, keep_edges
from sargnn.backends.cpu.folds import CpuFolds
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.rng import Draw, Purpose, edge_mask

ARRAYS = ("dst_rows", "indptr", "src", "t_indptr", "t_dst", "t_edge", "weight", "t_weight")


def block(num_dst: int = 40, edges: int = 200) -> EdgeBlock:
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(30, (edges,), generator=generator, dtype=torch.int32)
    dst = torch.randint(num_dst, (edges,), generator=generator, dtype=torch.int32).sort().values
    ids = torch.randperm(1000, generator=generator)
    return EdgeBlock(
        src,
        dst,
        30,
        num_dst,
        EndIds(ids[:30], ids[30 : 30 + num_dst]),
        columns=EdgeColumns.of({"weight": torch.rand(edges, generator=generator)}),
    )


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("num_dst", [40, 400])  # all destinations listed, and not
def test_the_same_as_a_block_of_these_edges(share: float, num_dst: int) -> None:
    whole = block(num_dst)
    whole.cache["kernel"] = "something"
    kept = torch.rand(whole.num_edges, generator=torch.Generator().manual_seed(1)) < share
    assert whole.weight is not None
    destinations = whole.dst_per_edge().to(torch.int32)
    want = EdgeBlock(whole.src[kept], destinations[kept], 30, num_dst, columns=EdgeColumns.of({"weight": whole.weight[kept]}))
    found = keep_edges(whole, kept)
    for name in ARRAYS:
        one, other = getattr(found, name), getattr(want, name)
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other)), name
        assert one is None or one.dtype == other.dtype
    assert not found.cache and found.src_ids is whole.src_ids and found.dst_ids is whole.dst_ids
    assert whole.num_edges == 200 and whole.cache


@pytest.mark.parametrize("num_dst", [40, 400])
def test_the_order_of_gradients_is_made_when_it_is_asked_for(num_dst: int) -> None:
    """It lies where the other tensors lie, and is that of a stable sort; a stored block has what there was."""
    whole, lain = block(num_dst), list[Tensor]()

    def lay(tensor: Tensor) -> Tensor:
        lain.append(tensor)
        return tensor

    whole.lay(lay)
    assert "_by_source" not in vars(whole) and "_by_source" not in vars(pickle.loads(pickle.dumps(whole)))
    whole.ready_for_gradients()
    order = torch.sort(whole.src, stable=True).indices
    assert torch.equal(whole.t_dst, whole.dst_per_edge().to(torch.int32)[order]) and torch.equal(whole.t_edge, order.int())
    assert torch.equal(whole.t_indptr.diff(), torch.bincount(whole.src, minlength=30).int())
    assert all(any(tensor is made for tensor in lain) for made in (whole.t_indptr, whole.t_dst, whole.t_edge))
    assert torch.equal(pickle.loads(pickle.dumps(whole)).t_dst, whole.t_dst)


def test_ids_are_put_together_when_they_are_asked_for() -> None:
    asked = list[str]()

    def ids() -> Tensor:
        asked.append("ids")
        return torch.arange(3)

    src, dst = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    made = EdgeBlock(src, dst, 3, 2, EndIds(ids, torch.arange(2), lambda: torch.arange(3, dtype=torch.int32)))
    assert not asked
    assert torch.equal(made.src_ids, torch.arange(3)) and made.src_ids is made.src_ids and asked == ["ids"]
    assert torch.equal(pickle.loads(pickle.dumps(made)).src_id_rank, torch.arange(3, dtype=torch.int32))


def test_edges_are_drawn_by_the_original_ids_of_their_ends() -> None:
    whole, draw = block(), Draw(3, 5, Purpose.EDGE_DROPOUT, 2, 0.4)
    wanted = edge_mask(whole.src_ids[whole.src.long()], whole.dst_ids[whole.dst_per_edge()], 1, draw)[:, 0]
    assert 0.4 < wanted.double().mean() < 0.8
    torch.testing.assert_close(CpuFolds().drop_factors(whole, draw, torch.float64), wanted.double() / 0.6)
    assert torch.equal(keep_edges(whole, CpuFolds().drop_factors(whole, draw, torch.float32) > 0).src, whole.src[wanted])
