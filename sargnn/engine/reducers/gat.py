"""Attention over in-neighbours: a softmax that goes on from shard to shard (paper, section 3.4).

    out_i = sum over edges j -> i of r_ji a_ji z_j        a_ji = exp(e_ji - m_i) / s_i

Per destination and head the running maximum m, denominator s and the row normalised so far are kept; when m grows, both are
scaled by exp(old m - new m). Backward, with delta_i = <g_i, out_i> per head: d e = a (r <g_i, z_j> - delta_i),
d z_j += a r g_i. r is attention dropout's factor, drawn again by the original ids of the edge's ends.

Letters: N input rows, M output rows, S source rows of a shard, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import Kernel
from sargnn.rng import Draw
from sargnn.shards.plan import LayerPlan, Shard


class _Attentive(Reducer):
    """What both scorings share.

    Args:
        heads: K. negative_slope: of LeakyReLU, 0 to 1. draw: of attention dropout; None drops nothing.
    """

    needs_src_in_backward = True
    needs_out_in_backward = True

    def __init__(self, heads: int = 1, negative_slope: float = 0.2, draw: Draw | None = None) -> None:
        self.attention = Attention(heads, negative_slope, draw)

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> RunningSoftmax:
        out = POOL.empty(plan.num_out, sent[0].shape[1], sent[0])
        return RunningSoftmax.empty(sent[0], plan.num_out, self.attention.heads, out)

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: RunningSoftmax) -> tuple[Tensors, Tensors]:
        isolated = torch.nonzero(plan.in_degrees == 0)[:, 0]
        state.out.index_fill_(0, isolated, 0)
        return (state.out,), (state.top, state.total)

    def _records(self, kernel: Kernel, er: Tensor | None, saved: Saved, grad: Tensor) -> Tensor:
        """What backward reads of each destination; the output is not needed after that."""
        (out,), saved.out = saved.out, ()
        return kernel.attention_records(er, RunningSoftmax(out, *saved.stats), grad)


class Gat(_Attentive):
    """Scores ``e_ji = LeakyReLU(el_j + er_i)`` (Velickovic et al., 2018).

    ``sent`` is (z [N, K D], el [N, K]), in one message; ``local`` is (er [M, K],). Saves its inputs, its output, m and s.
    """

    name = "gat"
    operation = "gat"

    def step(self, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors, state: RunningSoftmax) -> None:
        z, el = rows
        kernel.gat_forward(shard.block, self.attention, z, el, local[0], state)

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        grad = grads[0].contiguous()
        return self._records(kernel, saved.local[0], saved, grad), grad, torch.zeros_like(saved.local[0])

    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Any, out: Tensors | None
    ) -> None:
        assert rows is not None
        (z, el), (records, grad, d_er) = rows, state
        d_z, d_el = (None, None) if out is None else out
        kernel.gat_backward(shard.block, self.attention, z, el, records, grad, d_z, d_el, d_er)

    def backward_finish(self, saved: Saved, state: Any) -> tuple[Tensors, Tensors]:
        return (state[2],), ()

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        z, el = rows
        return (kernel.gat_autograd(shard.block, self.attention, z, el, local[0]),)


class GatV2(_Attentive):
    """Scores ``e_ji = <att, LeakyReLU(z_j + x_i)>`` per head (Brody et al., 2022).

    ``sent`` is (z [N, K D],), ``local`` (x [M, K D],), ``params`` (att [K D],). Saves its inputs, its output, m and s.
    """

    name = "gatv2"
    operation = "gatv2"

    def step(self, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors, state: RunningSoftmax) -> None:
        kernel.gatv2_forward(shard.block, self.attention, rows[0], local[0], params[0], state)

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> tuple[Tensor, ...]:
        grad = grads[0].contiguous()
        records = self._records(kernel, None, saved, grad)
        return records, grad, torch.zeros_like(saved.local[0]), torch.zeros_like(saved.params[0])

    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Any, out: Tensors | None
    ) -> None:
        assert rows is not None
        records, grad, d_x, d_att = state
        d_z = None if out is None else out[0]
        x, att = saved.local[0], saved.params[0]
        kernel.gatv2_backward(shard.block, self.attention, rows[0], x, att, records, grad, d_z, d_x, d_att)

    def backward_finish(self, saved: Saved, state: Any) -> tuple[Tensors, Tensors]:
        return (state[2],), (state[3],)

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        return (kernel.gatv2_autograd(shard.block, self.attention, rows[0], local[0], params[0]),)
