"""Attention's part of the compiled kernel; see ``cpu_attention`` and ``cpu_attention_v2`` for the loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.fused_block import chunks_of_block, lanes_of_block, listed_rows, numpy_of


class FusedAttention(Kernel):
    """Nothing of size edges x heads is stored: weights are computed again in backward, and dropped again."""

    def gat_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, running: RunningSoftmax
    ) -> None:
        from sargnn.kernels.cpu_attention import fold_attention

        if block.num_edges:
            fold_attention(
                chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy(),
                numpy_of(z), numpy_of(el), numpy_of(er), *_numbers(block, attention, z),
                numpy_of(running.out), numpy_of(running.top), numpy_of(running.total),
            )  # fmt: skip

    def attention_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        from sargnn.kernels.cpu_attention import records_of

        return records_of(er, running, grad)

    def gat_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_el: Tensor | None, d_er: Tensor,
    ) -> None:  # fmt: skip
        from sargnn.kernels.cpu_attention import write_attention_errors

        if d_z is None or d_el is None:
            d_z, d_el = torch.empty_like(z), torch.empty_like(el)
        if not block.num_edges:
            d_z.zero_()
            d_el.zero_()
            return
        bounds = lanes_of_block(block, "backward")
        lanes = _lanes(d_er, len(bounds) - 1)
        write_attention_errors(
            bounds, block.t_indptr.numpy(), block.t_dst.numpy(), numpy_of(z), numpy_of(el), numpy_of(records),
            numpy_of(grad), *_numbers(block, attention, z), numpy_of(d_z), numpy_of(d_el), numpy_of(lanes),
        )  # fmt: skip
        _add_lanes(d_er, lanes)

    def gat_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")

    def gatv2_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, running: RunningSoftmax
    ) -> None:
        from sargnn.kernels.cpu_attention_v2 import fold_attention_v2

        if block.num_edges:
            fold_attention_v2(
                chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy(),
                numpy_of(z), numpy_of(x), numpy_of(att), *_numbers(block, attention, z),
                numpy_of(running.out), numpy_of(running.top), numpy_of(running.total),
            )  # fmt: skip

    def gatv2_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_x: Tensor, d_att: Tensor,
    ) -> None:  # fmt: skip
        from sargnn.kernels.cpu_attention_v2 import add_destination_errors, write_source_errors

        if not block.num_edges:
            if d_z is not None:
                d_z.zero_()
            return
        numbers = _numbers(block, attention, z)
        rows = (numpy_of(z), numpy_of(x), numpy_of(att), numpy_of(records), numpy_of(grad))
        bounds = lanes_of_block(block, "forward")
        lanes = torch.zeros(len(bounds) - 1, d_att.numel(), dtype=torch.float64)
        add_destination_errors(
            bounds, listed_rows(block), block.indptr.numpy(), block.src.numpy(), *rows, *numbers,
            numpy_of(d_x), numpy_of(lanes),
        )  # fmt: skip
        d_att += lanes.sum(0).to(d_att.dtype)
        if d_z is not None:
            write_source_errors(
                chunks_of_block(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy(), *rows, *numbers,
                numpy_of(d_z),
            )  # fmt: skip

    def gatv2_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")


def _numbers(block: EdgeBlock, attention: Attention, like: Tensor) -> tuple[Any, ...]:
    """The slope and what dropout needs, as the compiled loops take them."""
    from sargnn.kernels.cpu_attention import words_of

    number = numpy_of(like).dtype.type
    ids = (block.src_ids.numpy(), block.dst_ids.numpy())
    return (number(attention.negative_slope), attention.heads, *ids, words_of(attention.draw), number(attention.scale))


def _lanes(total: Tensor, count: int) -> Tensor:
    """Room [lanes, M, K] to add to ``total`` [M, K]: itself where there is one lane."""
    return total[None] if count == 1 else total.new_zeros(count, *total.shape)


def _add_lanes(total: Tensor, lanes: Tensor) -> None:
    if len(lanes) > 1:
        for lane in lanes:
            total += lane
