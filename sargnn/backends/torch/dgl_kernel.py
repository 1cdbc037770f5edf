"""DGL's kernel on a CPU: its graphs of a block of edges, and memory of its own, which is no tensor's: their formats, and what
libxsmm makes of them while it sums. Graphs are built on first use and kept with the block; those of sums share its arrays.

Letters: S source rows, M destination rows, A listed destination rows, E edges.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.base import Kernel, operations_of
from sargnn.backends.block import EdgeBlock
from sargnn.interop.dgl import DglMissingError, copy_u_max_with_rows, import_dgl


class DglKernel(Kernel):
    """See ``dgl_operations``."""

    name = "dgl"
    autograd_reads_bf16 = True
    operations = operations_of("dgl")
    autograd_operations = operations_of("dgl", ".autograd")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"DGL from PyPI runs on a CPU only, not on {device.type}")
        if dtype not in (torch.float32, torch.float64, torch.bfloat16):
            reasons.append(f"it is used in fp32, fp64 and bf16, not in {dtype}")
        try:
            import_dgl()
        except DglMissingError as error:
            reasons.append(error.reason)
        return reasons

    def graph_bytes(self, operation: str, *, autograd: bool) -> int:
        if operation in _ATTENTIONS:
            return _ATTENTION if autograd else _BOTH_ATTENTIONS
        return _SUMS if autograd else 0

    def passing_bytes(self, operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
        return libxsmm_bytes(operation, edges, rows, row_bytes, dtype)


_SUMS, _ATTENTION, _BOTH_ATTENTIONS = 8, 20, 36
"""Bytes of an edge, measured: both formats of a graph of sums; the formats of an attention's graph, and of its two graphs."""
_BLOCK = 8
"""Bytes of an edge in libxsmm's blocks."""
_ATTENTIONS = ("gat", "gatv2", "dot")
_USUAL_CACHE_BYTES, _SHARE_OF_CACHE = 40_000_000, 500
"""Of DGL's ``array/cpu/spmm_blocking_libxsmm.h``: the last cache where its size is not known, and the heuristic's parameter."""
_CACHE_SIZE = 194
"""``_SC_LEVEL3_CACHE_SIZE`` of glibc, which Python has no name for."""


def libxsmm_bytes(operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
    """What a sum or maximum copies of its edges while it runs (``Kernel.passing_bytes``): they are cut into blocks where the
    rows of others that they read are more than the last cache holds a share of."""
    if operation in _ATTENTIONS or dtype == torch.float64 or not rows:
        return 0  # sums that weigh rows by head, and fp64, run without libxsmm
    return _BLOCK * edges if edges / rows * row_bytes * _SHARE_OF_CACHE > last_cache_bytes() else 0


@cache
def last_cache_bytes() -> int:
    """Of this machine, as DGL reads it."""
    try:
        size = os.sysconf(_CACHE_SIZE)
    except (OSError, ValueError):
        size = -1
    return size if size >= 0 else _USUAL_CACHE_BYTES


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
    """Sources to all destination rows, with the formats that DGL's forward and backward read made once. ``ordered``: the dtype
    of the maxima that it serves; None: sums."""
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
    """A block's graphs for SDDMM and SpMM, with all formats made: sources to listed destinations and the reverse, in both of
    which edges have the same numbers. ``listed``: int64 [A], the destination rows; None: all."""

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
