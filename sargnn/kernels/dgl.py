"""DGL's SpMM (libxsmm on a CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock


class DglKernel(Kernel):
    """DGL's operators on graphs that share the block's index arrays; built on first use and kept with the block.

    ``sum_forward`` and ``sum_backward`` hold one temporary of the size of their result, because DGL's SpMM cannot add
    into an existing tensor.
    """

    name = "dgl"
    operations = frozenset({"sum"})

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

    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            total = import_dgl().ops.copy_u_sum(_forward_graph(block), src)
        if block.dst_rows is None:
            out.add_(total)
        else:
            out.index_add_(0, block.dst_rows, total)

    def sum_backward(self, block: EdgeBlock, grad: Tensor, out: Tensor) -> None:
        if not block.num_edges:
            out.zero_()
            return
        with torch.no_grad():
            out.copy_(import_dgl().ops.copy_u_sum(_backward_graph(block), grad))

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        if not block.num_edges:
            return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
        return import_dgl().ops.copy_u_sum(_whole_graph(block), src)


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


def _whole_graph(block: EdgeBlock) -> Any:
    """Sources to all destination rows, with the formats that DGL's forward and backward read made once."""
    if "dgl_whole" not in block.cache:
        dst = block.dst_per_edge()
        indptr = torch.zeros(block.num_dst + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(dst, minlength=block.num_dst), 0, out=indptr[1:])
        graph = _graph(block.num_src, block.num_dst, (indptr.to(torch.int32), block.src))
        block.cache["dgl_whole"] = graph.formats(["csc", "csr"])
        block.cache["dgl_whole"].create_formats_()
    return block.cache["dgl_whole"]
