"""DGL's operators: SpMM (libxsmm on a CPU); attention in ``dgl_attention``."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from sargnn.interop.dgl import copy_u_max_with_rows, import_dgl
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl_attention import DglAttention


class DglKernel(DglAttention):
    """DGL's operators on graphs that are built on first use and kept with the block; those of sums share its index arrays.

    ``sum_forward`` and ``sum_backward`` hold one temporary of the size of their result, because DGL's SpMM cannot add
    into an existing tensor.
    """

    name = "dgl"
    operations = frozenset({"sum", "max", "gat", "gatv2"})

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"DGL from PyPI runs on a CPU only, not on {device.type}")
        if dtype not in (torch.float32, torch.float64):
            reasons.append(f"it is used in fp32 and fp64, not in {dtype}")
        try:
            import_dgl()
        except (ImportError, OSError) as error:
            reasons.append(f"DGL cannot be imported: {error}")
        return reasons

    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            total = import_dgl().ops.copy_u_sum(_forward_graph(block), src)
            if scale is not None:
                total *= (scale if block.dst_rows is None else scale[block.dst_rows.long()])[:, None]
        if block.dst_rows is None:
            out.add_(total)
        else:
            out.index_add_(0, block.dst_rows, total)

    def sum_backward(
        self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False
    ) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        with torch.no_grad():
            total = import_dgl().ops.copy_u_sum(_backward_graph(block), grad if scale is None else grad * scale[:, None])
        if add:
            out.add_(total)
        else:
            out.copy_(total)

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        if not block.num_edges:
            return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
        return import_dgl().ops.copy_u_sum(whole_graph(block), src)

    def max_forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            top, rows = copy_u_max_with_rows(_ordered_graph(block, src.dtype), src)
            places = block.src_order[rows.long()]
            listed = slice(None) if block.dst_rows is None else block.dst_rows.long()
            known, holder = best[listed], winner[listed]
            better = (top > known) | ((top == known) & (places < holder))
            best[listed], winner[listed] = torch.where(better, top, known), torch.where(better, places, holder)

    def max_backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor) -> None:
        # Scattered by winning row, as in DGL's own backward pass; those that no source row of this block won go to a spare row.
        if not block.num_src:
            return
        places, rows = block.src_order.sort()
        found = torch.searchsorted(places, winner).clamp_(max=block.num_src - 1)
        target = torch.where(places[found] == winner, rows[found], block.num_src)
        out.copy_(grad.new_zeros(block.num_src + 1, grad.shape[1]).scatter_add_(0, target, grad)[:-1])

    def max_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        if not block.num_edges:
            return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()
        top: Tensor = import_dgl().ops.copy_u_max(whole_graph(block, ordered=src.dtype), src)
        if block.dst_rows is None:
            return top
        isolated = torch.ones(block.num_dst, 1, dtype=torch.bool).index_fill_(0, block.dst_rows.long(), False)
        return top.masked_fill(isolated, 0)  # DGL leaves -inf there


def _graph(num_src: int, num_dst: int, csc: tuple[Tensor, Tensor]) -> Any:
    indptr, indices = csc
    no_ids = torch.empty(0, dtype=indices.dtype)
    return import_dgl().heterograph(
        {("source", "to", "destination"): ("csc", (indptr, indices, no_ids))},
        num_nodes_dict={"source": num_src, "destination": num_dst},
    )


def _forward_graph(block: EdgeBlock) -> Any:
    """Sources to LISTED destination rows."""
    if "dgl_forward" not in block.cache:
        block.cache["dgl_forward"] = _graph(block.num_src, block.num_listed, (block.indptr, block.src))
    return block.cache["dgl_forward"]


def _backward_graph(block: EdgeBlock) -> Any:
    """All destination rows to sources: the block reversed."""
    if "dgl_backward" not in block.cache:
        block.cache["dgl_backward"] = _graph(block.num_dst, block.num_src, (block.t_indptr, block.t_dst))
    return block.cache["dgl_backward"]


def _ordered_graph(block: EdgeBlock, dtype: torch.dtype) -> Any:
    """Sources to listed destination rows, in an order in which DGL's choice among equal maxima is the smallest source."""
    key = f"dgl_ordered_{dtype}"
    if key not in block.cache:
        block.cache[key] = _graph(block.num_src, block.num_listed, (block.indptr, _ordered_src(block, dtype)))
    return block.cache[key]


def _ordered_src(block: EdgeBlock, dtype: torch.dtype) -> Tensor:
    """``block.src`` with each destination's sources by ``src_order``, the smallest where DGL's choice falls."""
    row = torch.repeat_interleave(torch.arange(block.num_listed), (block.indptr[1:] - block.indptr[:-1]).long())
    places = int(block.src_order.max()) + 1
    own = block.src_order[block.src.long()]
    key = row * places + (places - 1 - own if _keeps_last(dtype) else own)
    return block.src[torch.argsort(key)].contiguous()


@cache
def _keeps_last(dtype: torch.dtype) -> bool:
    """Which of equal maxima DGL keeps: the last in fp32 (libxsmm), the first in fp64. Asked, not assumed."""
    indptr, indices = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    _, rows = copy_u_max_with_rows(_graph(2, 1, (indptr, indices)), torch.zeros(2, 16, dtype=dtype))
    return bool(rows[0, 0] == 1)


def whole_graph(block: EdgeBlock, ordered: torch.dtype | None = None) -> Any:
    """Sources to all destination rows, with the formats that DGL's forward and backward read made once.

    Args:
        ordered: the dtype of the maxima that it serves; None for sums.
    """
    key = "dgl_whole" if ordered is None else f"dgl_whole_{ordered}"
    if key not in block.cache:
        dst = block.dst_per_edge()
        indptr = torch.zeros(block.num_dst + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(dst, minlength=block.num_dst), 0, out=indptr[1:])
        src = block.src if ordered is None else _ordered_src(block, ordered)
        graph = _graph(block.num_src, block.num_dst, (indptr.to(torch.int32), src))
        block.cache[key] = graph.formats(["csc", "csr"])
        block.cache[key].create_formats_()
    return block.cache[key]
