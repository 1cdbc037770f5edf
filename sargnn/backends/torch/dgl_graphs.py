"""DGL's graphs of a block of edges, built on first use and kept with the block. Those of sums share its index arrays.

Letters: S source rows, M destination rows, A listed destination rows, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.interop.dgl import copy_u_max_with_rows, import_dgl


def _compressed(num_src: int, num_dst: int, csc: tuple[Tensor, Tensor]) -> Any:
    """A graph given by its sources in compressed columns (indptr, indices), which it shares."""
    indptr, indices = csc
    no_ids = torch.empty(0, dtype=indices.dtype)
    return import_dgl().heterograph(
        {("source", "to", "destination"): ("csc", (indptr, indices, no_ids))},
        num_nodes_dict={"source": num_src, "destination": num_dst},
    )


def forward_graph(block: EdgeBlock) -> Any:
    """Sources to LISTED destination rows."""
    if "dgl_forward" not in block.cache:
        block.cache["dgl_forward"] = _compressed(block.num_src, block.num_listed, (block.indptr, block.src))
    return block.cache["dgl_forward"]


def backward_graph(block: EdgeBlock) -> Any:
    """All destination rows to listed sources: the block reversed."""
    if "dgl_backward" not in block.cache:
        block.cache["dgl_backward"] = _compressed(block.num_dst, block.num_listed_sources, (block.t_indptr, block.t_dst))
    return block.cache["dgl_backward"]


def ordered_graph(block: EdgeBlock, dtype: torch.dtype) -> Any:
    """Sources to listed destination rows, in an order in which DGL's choice among equal maxima is the smallest source."""
    key = f"dgl_ordered_{dtype}"
    if key not in block.cache:
        block.cache[key] = _compressed(block.num_src, block.num_listed, (block.indptr, _ordered_src(block, dtype)))
    return block.cache[key]


def _ordered_src(block: EdgeBlock, dtype: torch.dtype) -> Tensor:
    """``block.src`` with each destination's sources by ``src_id_rank``, the smallest where DGL's choice falls."""
    row = torch.repeat_interleave(torch.arange(block.num_listed), (block.indptr[1:] - block.indptr[:-1]).long())
    ranks = int(block.src_id_rank.max()) + 1
    own = block.src_id_rank[block.src.long()]
    key = row * ranks + (ranks - 1 - own if _keeps_last(dtype) else own)
    return block.src[torch.argsort(key)].contiguous()


@cache
def _keeps_last(dtype: torch.dtype) -> bool:
    """Which of equal maxima DGL keeps: the last in fp32 (libxsmm), the first in fp64. Asked, not assumed."""
    indptr, indices = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    _, rows = copy_u_max_with_rows(_compressed(2, 1, (indptr, indices)), torch.zeros(2, 16, dtype=dtype))
    return bool(rows[0, 0] == 1)


def whole_graph(block: EdgeBlock, ordered: torch.dtype | None = None) -> Any:
    """Sources to all destination rows, with the formats that DGL's forward and backward read made once.

    Args:
        ordered: the dtype of the maxima that it serves; None for sums.
    """
    key = "dgl_whole" if ordered is None else f"dgl_whole_{ordered}"
    if key not in block.cache:
        listed = slice(None) if block.dst_rows is None else block.dst_rows.long()
        degrees, indptr = torch.zeros(block.num_dst, dtype=torch.int64), torch.zeros(block.num_dst + 1, dtype=torch.int64)
        degrees[listed] = torch.diff(block.indptr).long()
        torch.cumsum(degrees, 0, out=indptr[1:])
        src = block.src if ordered is None else _ordered_src(block, ordered)
        graph = _compressed(block.num_src, block.num_dst, (indptr.to(torch.int32), src))
        block.cache[key] = graph.formats(["csc", "csr"])
        block.cache[key].create_formats_()
    return block.cache[key]


@dataclass(frozen=True)
class AttentionGraphs:
    """A block's graphs for SDDMM and SpMM, with all formats made.

    Attributes:
        forward: sources to listed destinations, ``backward`` the reverse; edges have the same numbers in both.
        listed: int64 [A], the destination rows; None for all.
    """

    forward: Any
    backward: Any
    listed: Tensor | None

    def rows(self, per_destination: Tensor) -> Tensor:
        """The listed rows of [M, ...]."""
        return per_destination if self.listed is None else per_destination[self.listed]


def _bipartite(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Any:
    """A graph whose edges are numbered as given, with the formats that SDDMM and SpMM read."""
    graph = import_dgl().heterograph(
        {("source", "to", "destination"): (src, dst)}, num_nodes_dict={"source": num_src, "destination": num_dst}
    )
    graph.create_formats_()
    return graph


def attention_graphs(block: EdgeBlock) -> AttentionGraphs:
    """Between sources and listed destination rows."""
    if "dgl_attention" not in block.cache:
        counts = (block.indptr[1:] - block.indptr[:-1]).long()
        positions = torch.repeat_interleave(torch.arange(block.num_listed, dtype=torch.int32), counts)
        block.cache["dgl_attention"] = AttentionGraphs(
            _bipartite(block.src, positions, block.num_src, block.num_listed),
            _bipartite(positions, block.src, block.num_listed, block.num_src),
            None if block.dst_rows is None else block.dst_rows.long(),
        )
    graphs: AttentionGraphs = block.cache["dgl_attention"]
    return graphs


def whole_attention_graph(block: EdgeBlock) -> Any:
    """Sources to all destination rows; edges in the block's order."""
    if "dgl_attention_whole" not in block.cache:
        dst = block.dst_per_edge().to(torch.int32)
        block.cache["dgl_attention_whole"] = _bipartite(block.src, dst, block.num_src, block.num_dst)
    return block.cache["dgl_attention_whole"]
