"""Attention over in-neighbours: a softmax that goes on from shard to shard (paper, section 3.4).

    out_i = sum over edges j -> i of r_ji a_ji z_j        a_ji = exp(e_ji - m_i) / s_i

Per destination and head the running maximum m, denominator s and the row normalised so far are kept; when m grows, both are
scaled by exp(old m - new m). r is attention dropout's factor, drawn again in backward by the original ids of the edge's ends,
and with ``weighted`` times the graph's edge weight, as DGL's ``GATConv`` takes ``edge_weight``: the softmax does not see it.
Backward, with delta_i = <g_i, out_i> per head: d e = a (r <g_i, z_j> - delta_i), d z_j += a r g_i.

A partial result is the softmax over some of a destination's edges: the row normalised, and l = m + log s per head. It merges as
one edge with the score l. Backward asks with g_i, l_i of all edges and delta_i: a_ji = exp(e_ji - l_i) needs nothing that the
sources' owner must have kept.

Letters: N input rows, M output rows, S source rows of a shard, A rows of a piece, K heads, D head width, C width of a head of
queries and keys; of edges' features their number.
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, keep_edges
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, AttentionOperation, RunningSoftmax
from sargnn.bf16 import wide
from sargnn.comm.lists import Column, PartialRound, Piece
from sargnn.engine.reducers.base import (
    Fold,
    Part,
    PartialColumns,
    Reducer,
    Saved,
    Tensors,
    WithPartials,
    check_weights,
    served_shard,
)
from sargnn.engine.workspace import empty_sums, zero_sums
from sargnn.errors import KernelError
from sargnn.plan.layer_plan import Shard
from sargnn.rng import Draw

_Fold = Fold[AttentionOperation]


@dataclass(frozen=True)
class _Backward:
    """A backward pass.

    Attributes:
        records: [M, 4 K], see ``AttentionOperation.destination_records``.
        grad: [M, K D], of the output.
        d_local, d_params: gradients of what stays with the destinations and of the parameters, so far.
        grad_of_edges: [M, K F], of ``EdgeDotAttention``'s sums of edges' rows.
        d_edges: of p, and of f if it is wanted, so far.
    """

    records: Tensor
    grad: Tensor
    d_local: Tensor
    d_params: Tensors
    grad_of_edges: Tensor | None = None
    d_edges: Tensors = ()


class _Attentive(Reducer[AttentionOperation, RunningSoftmax, _Backward], WithPartials, ABC):
    """What both scorings share.

    Args:
        heads: K.
        negative_slope: of LeakyReLU, 0 to 1.
        draw: of attention dropout; None drops nothing.
        weighted: use the graph's edge weights where it has some.
        edges: of edges that take no part, neither in the softmax nor in the sum; None: all do. Drawn again in backward.
        features: whether scores read the edges' features; the last parameter is their map then.
    """

    needs_src_in_backward = True
    needs_out_in_backward = True
    has_partials = True  # ``serve`` calls its own ``step``
    adds_scores: ClassVar[bool]
    """Whether a score is made of a number of each end, el_j and er_i."""

    def __init__(
        self,
        heads: int = 1,
        negative_slope: float = 0.2,
        draw: Draw | None = None,
        edges: Draw | None = None,
        *,
        weighted: bool = False,
        features: bool = False,
    ) -> None:
        self.attention, self.edges = Attention(heads, negative_slope, draw), edges
        self.weighted, self.features = weighted, features
        if features:
            self.operation = f"edge_{type(self).operation}"

    def parts(self, width: int, groups: int) -> tuple[Part, ...]:
        """By heads; not with attention dropout, which is drawn by a head's number."""
        heads = self.attention.heads
        groups = min(groups, heads)
        if groups < 2 or self.attention.draw is not None:
            return ()
        ends = [heads * g // groups for g in range(groups + 1)]
        return tuple(Part(self._of_heads(b - a), a, b, heads) for a, b in zip(ends, ends[1:], strict=False))

    def _of_heads(self, heads: int) -> _Attentive:
        of_heads = copy(self)
        of_heads.attention = dataclasses.replace(self.attention, heads=heads)
        return of_heads

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> RunningSoftmax:
        check_weights(fold.plan, fold.operation, weighted=self.weighted)
        if fold.scores is not None:
            check_scores(fold.operation)
        z, num_out = exchanged[0], fold.plan.num_out
        return RunningSoftmax.empty(z, num_out, self.attention.heads, empty_sums(fold.pool, num_out, z.shape[1], z))

    def step(
        self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: RunningSoftmax
    ) -> None:
        block, weight = self._block(fold, shard)
        scores = None
        if fold.scores is not None:
            like = torch.empty(0, dtype=wide(fold.dtype), device=fold.plan.in_degrees.device)
            room = fold.pool.empty(shard.block.num_edges, self.attention.heads, like)  # as many in every epoch
            fold.scores[id(shard)] = scores = room[: block.num_edges]
        att, of_features = self._of(params)
        inputs = AttentionInputs(rows, dest_local[0], att, weight, scores, edge_map=of_features)
        fold.operation.forward(block, self.attention, inputs, state)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: RunningSoftmax) -> tuple[Tensors, Tensors]:
        if self.edges is None:
            state.out.index_fill_(0, fold.plan.isolated, 0)
        else:
            state.out.masked_fill_(state.denominator[:, :1] == 0, 0)
        return (fold.narrowed(state.out),), (state.max_score, state.denominator)

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> _Backward:
        (out, *_), saved.out = saved.out, ()  # not needed after the records
        grad, local = grads[0].contiguous(), saved.dest_local[0]
        running = RunningSoftmax(out, *saved.stats)
        records = fold.operation.destination_records(local if self.adds_scores else None, running, grad)
        d_local = torch.zeros_like(local, dtype=wide(local.dtype))
        return _Backward(records, grad, d_local, tuple(torch.zeros_like(param) for param in saved.params))

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None
        block, inputs = self._backward_inputs(fold, shard, rows, saved.dest_local[0], saved)
        att, of_features = self._of(state.d_params)
        into = AttentionGradients(out, state.d_local, att, edge_map=of_features)
        fold.operation.backward(block, self.attention, inputs, state.records, state.grad, into)

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return (state.d_local.to(saved.dest_local[0].dtype),), state.d_params

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        row, heads = Column(widths[0], rows), self.attention.heads
        score, pair, triple = (Column(count * heads, wide(rows), exact=True) for count in (1, 2, 3))
        if self.adds_scores:
            return PartialColumns((score,), (row, score), (row, triple), (score,))
        local = Column(widths[-1], rows)
        return PartialColumns((local,), (row, score), (local, row, pair), (local,))

    def ask(self, fold: _Fold, now: PartialRound, dest_local: Tensors, params: Tensors, out: Tensors) -> None:
        fold.backend.moves.take(dest_local[0], now.wanted, out[0])

    def serve(
        self,
        fold: _Fold,
        piece: Piece,
        exchanged: Tensors,
        asked: Tensors,
        params: Tensors,
        state: RunningSoftmax,
        out: Tensors,
    ) -> None:
        rows, log_sum = out
        half = rows.dtype == torch.bfloat16
        held = empty_sums(fold.pool, len(rows), rows.shape[1], rows) if half else rows
        running = RunningSoftmax.empty(exchanged[0], len(rows), self.attention.heads, held)
        self.step(fold, served_shard(fold, piece), exchanged, asked, params, running)
        if self.edges is not None:  # which may leave nothing of a row's edges
            running.out.masked_fill_(running.denominator[:, :1] == 0, 0)
        torch.add(running.max_score, running.denominator.log(), out=log_sum)
        if held is not rows:
            rows.copy_(held)

    def merge(self, fold: _Fold, now: PartialRound, answers: Tensors, state: RunningSoftmax) -> None:
        rows, log_sum = answers
        fold.backend.folds.merge_softmax(now.wanted, rows, log_sum, state)

    def ask_gradients(self, fold: _Fold, now: PartialRound, saved: Saved, state: _Backward, out: Tensors) -> None:
        """(er, l, delta) beside the output's gradient; where scores are no sums, x or q before it, and (l, delta)."""
        *x, grad, numbers = out
        if x:
            fold.backend.moves.take(saved.dest_local[0], now.wanted, x[0])
        fold.backend.moves.take(state.grad, now.wanted, grad)
        er, top, inverse, delta = state.records.index_select(0, now.wanted).split(self.attention.heads, 1)
        log_sum = torch.where(inverse > 0, top - inverse.log(), 0)
        torch.cat([*([er] if self.adds_scores else []), log_sum, delta], 1, out=numbers)

    def serve_gradients(
        self,
        fold: _Fold,
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: _Backward,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        (*x, grad, numbers), (d_local,) = asked, out
        *er, log_sum, delta = numbers.split(self.attention.heads, 1)
        # Records with a maximum of l and a sum of 1.
        records = torch.cat([er[0] if er else torch.zeros_like(delta), log_sum, torch.ones_like(delta), delta], 1)
        block, inputs = self._backward_inputs(fold, served_shard(fold, piece), saved.exchanged, (x or er)[0], saved)
        half = d_local.dtype == torch.bfloat16
        held = zero_sums(fold.pool, len(d_local), d_local.shape[1], d_local) if half else d_local.zero_()
        att, of_features = self._of(state.d_params)
        into = AttentionGradients(d_exchanged, held, att, edge_map=of_features)
        fold.operation.backward(block, self.attention, inputs, records, grad, into, add=d_exchanged is not None)
        if held is not d_local:
            d_local.copy_(held)

    def merge_gradients(self, fold: _Fold, now: PartialRound, answers: Tensors, state: _Backward) -> None:
        fold.backend.moves.add(state.d_local, now.wanted, answers[0])

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        check_weights(fold.plan, fold.operation, weighted=self.weighted)
        block, weight = self._block(fold, shard)
        settings = {} if weight is None else {"weight": weight}
        return (fold.operation(block, self.attention, *rows, *dest_local, *params, **settings),)

    def _of(self, params: Tensors) -> tuple[Tensor | None, Tensor | None]:
        """``att`` and the map of features, or their gradients."""
        *att, of_features = params if self.features else (*params, None)
        return (att[0] if att else None), of_features

    def _block(self, fold: Fold[Any], shard: Shard) -> tuple[EdgeBlock, Tensor | None]:
        """The edges that take part, and their weights. What kernels keep with a block is made anew for some."""
        block = shard.block
        if self.edges is not None:
            block = keep_edges(block, fold.backend.folds.drop_factors(block, self.edges, torch.float32) > 0)
        return block, block.weight if self.weighted else None

    def _backward_inputs(
        self, fold: _Fold, shard: Shard, rows: Tensors, local: Tensor, saved: Saved
    ) -> tuple[EdgeBlock, AttentionInputs]:
        """The edges that take part, and what they read; their scores, too, which nobody else keeps then."""
        block, weight = self._block(fold, shard)
        scores = None if fold.scores is None else fold.scores.pop(id(shard), None)
        att, of_features = self._of(saved.params)
        return block, AttentionInputs(rows, local, att, weight, scores, edge_map=of_features)


def check_scores(operation: Any) -> None:
    """Raises ``KernelError`` if a kernel's operation gives no scores to keep."""
    if not getattr(operation, "keeps_scores", False):
        raise KernelError(
            "This kernel gives no attention scores to keep.",
            given="mode.keep=all",
            allowed="operations with 'keeps_scores' (sargnn.backends.operations.AttentionOperation)",
            hint="mode.keep=rows, or kernel=auto",
        )


class Gat(_Attentive):
    """Scores ``e_ji = LeakyReLU(el_j + er_i)`` (Velickovic et al., 2018).

    ``exchanged`` is (z [N, K D], el [N, K]), in one message; ``dest_local`` is (er [M, K],). Saves its inputs, its output, m
    and s. With ``features`` scores are LeakyReLU(el_j + er_i + A f_ji), ``params`` (A [K, C],), f_ji the edge's features; A's
    gradient is the sum of d x f_ji^T, d x that of what LeakyReLU is taken of.
    """

    name = "gat"
    operation = "gat"
    scores = (1,)
    adds_scores = True


class GatV2(_Attentive):
    """Scores ``e_ji = <att, LeakyReLU(z_j + x_i)>`` per head (Brody et al., 2022).

    ``exchanged`` is (z [N, K D],), ``dest_local`` (x [M, K D],), ``params`` (att [K D],). Saves its inputs, its output, m
    and s. With ``features`` scores are <att, LeakyReLU(z_j + x_i + W f_ji)>, ``params`` (att, W [K D, C]); W's gradient is the
    sum of d u f_ji^T, u what LeakyReLU is taken of.
    """

    name = "gatv2"
    operation = "gatv2"
    adds_scores = False


class DotAttention(_Attentive):
    """Scores ``e_ji = scale <q_i, k_j>`` per head: scaled dot-product attention over edges (Vaswani et al., 2017).

    ``exchanged`` is (v [N, K D], k [N, K C]), in one message, or (v,) where keys are the values; ``dest_local`` is
    (q [M, K C],). Saves its inputs, its output, m and s; memory beside them: the gradient of q in what sums are held in.

    Backward. out_i depends on e_ji through a_ji and through the sum s_i of all edges of i:

        d a_ji = r_ji <g_i, v_j>
        d e_ji = a_ji (d a_ji - sum over l -> i of a_li d a_li) = a_ji (r_ji <g_i, v_j> - delta_i)

    for the sum is <g_i, sum of r_li a_li v_l> = <g_i, out_i> = delta_i. Then

        d v_j = sum over i of r_ji a_ji g_i
        d k_j = scale * sum over i of d e_ji q_i        d q_i = scale * sum over j of d e_ji k_j

    and where keys are the values their gradient is d v + d k. Rows of both ends are needed again (case 2).

    With ``log_sums`` the second output is l [M, K], l_i = log of the sum of exp(e_ji), -inf without edges. Its gradient h_i
    adds a_ji h_i to d e_ji, so h_i is taken from delta_i. Softmaxes over several sets of edges, such as relations, are one by
    them (``join_softmaxes``).

    Args:
        scale: usually 1 / sqrt(C).
        log_sums: whether l is an output, too. Not in ``domain_parallel``.
    """

    name = "dot_attention"
    operation = "dot"
    adds_scores = False
    has_partials = True

    def __init__(
        self,
        heads: int = 1,
        scale: float = 1.0,
        draw: Draw | None = None,
        edges: Draw | None = None,
        *,
        weighted: bool = False,
        log_sums: bool = False,
    ) -> None:
        super().__init__(heads, draw=draw, edges=edges, weighted=weighted)
        self.attention, self.log_sums = Attention(heads, draw=draw, factor=scale), log_sums

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: RunningSoftmax) -> tuple[Tensors, Tensors]:
        out, stats = super().finish(fold, dest_local, params, state)
        return (*out, state.max_score + state.denominator.log()) if self.log_sums else out, stats

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> _Backward:
        state = super().backward_init(fold, saved, grads)
        if self.log_sums:
            state.records[:, -self.attention.heads :] -= grads[1]
        return state

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        if self.log_sums:
            raise KernelError(
                "Operators that autograd differentiates give no log-sums of attention.",
                given="mode=domain_parallel",
                allowed="mode=sar, no_remat or one_shot",
            )
        return super().autograd_forward(fold, shard, rows, dest_local, params)


class EdgeDotAttention(DotAttention):
    """``DotAttention`` whose edges have rows f_ji [F], which count as further columns of k_j and v_j, the same in all heads:

        e_ji = scale (<q_i, k_j> + <p_i, f_ji>)        out_i = sum of r_ji a_ji v_j        t_i = sum of r_ji a_ji f_ji

    So a layer that adds W f_ji to keys and to values per head, W [K D, F], as TransformerConv does, takes p_i = W^T q_i, and
    out_i + W t_i is its output: no table of [E, K D] is made (``edge_queries``, ``edge_values``).

    ``dest_local`` is (q [M, K C], p [M, K F], f [E, F]), f in the worker's numbering of edges (``LayerPlan.edge_runs``); the
    outputs are out [M, K D] and t [M, K F], then l. Backward, with h_i the gradient of t_i:

        delta_i = <g_i, out_i> + <h_i, t_i>        d e_ji = a_ji (r_ji (<g_i, v_j> + <h_i, f_ji>) - delta_i)
        d p_i = scale * sum over j of d e_ji f_ji        d f_ji = sum over heads of r_ji a_ji h_i + scale * d e_ji p_i

    No partial results, since f stays with the destinations' owner. While a shard's gradients are computed two numbers an
    edge and head are held; scores are not kept. ``learned``: whether f needs a gradient, the same on all ranks.
    """

    name = "edge_dot_attention"
    has_partials = False
    no_partials = "the edges' rows stay with their destinations' owner"

    def __init__(
        self,
        heads: int = 1,
        scale: float = 1.0,
        draw: Draw | None = None,
        *,
        learned: bool,
        weighted: bool = False,
        log_sums: bool = False,
    ) -> None:
        super().__init__(heads, scale, draw, weighted=weighted, log_sums=log_sums)
        self.learned = learned

    def parts(self, width: int, groups: int) -> tuple[Part, ...]:
        return ()  # the edges' rows are the same in all heads

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> RunningSoftmax:
        if not getattr(fold.operation, "takes_edge_rows", False):
            raise KernelError(
                "This kernel's attention takes no rows of edges.",
                given=type(fold.operation).__name__,
                allowed="operations with 'takes_edge_rows' (sargnn.backends.operations.AttentionOperation)",
                hint="kernel=auto",
            )
        running, p = super().init(fold, exchanged, dest_local, params), dest_local[1]
        return dataclasses.replace(running, edge_out=torch.zeros_like(p, dtype=wide(p.dtype)))

    def step(
        self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: RunningSoftmax
    ) -> None:
        (block, weight), (q, p, f) = self._block(fold, shard), dest_local
        inputs = AttentionInputs(rows, q, weight=weight, edges=(f[fold.plan.edge_run(shard)].contiguous(), p))
        fold.operation.forward(block, self.attention, inputs, state)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: RunningSoftmax) -> tuple[Tensors, Tensors]:
        (out, *log_sums), stats = super().finish(fold, dest_local, params, state)
        assert state.edge_out is not None
        return (out, fold.narrowed(state.edge_out), *log_sums), stats

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> _Backward:
        _, p, f = saved.dest_local
        of_edges, d_edges = saved.out[1], grads[1].contiguous()
        state = super().backward_init(fold, saved, (grads[0], *grads[2:]))
        through = self.attention.by_head(d_edges).to(state.records.dtype) * self.attention.by_head(of_edges)
        state.records[:, -self.attention.heads :] += through.sum(2)
        gradients = torch.zeros_like(p, dtype=wide(p.dtype)), *([torch.zeros_like(f)] if self.learned else [])
        return dataclasses.replace(state, grad_of_edges=d_edges, d_edges=gradients)

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None and state.grad_of_edges is not None
        (block, weight), (q, p, f), run = self._block(fold, shard), saved.dest_local, fold.plan.edge_run(shard)
        inputs = AttentionInputs(rows, q, weight=weight, edges=(f[run].contiguous(), p, state.grad_of_edges))
        d_p, *d_f = state.d_edges
        into = AttentionGradients(out, state.d_local, edges=(d_p, *(rows_of[run] for rows_of in d_f)))
        fold.operation.backward(block, self.attention, inputs, state.records, state.grad, into)

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        (d_q,), params = super().backward_finish(saved, state)
        d_p, *d_f = state.d_edges
        local: Any = (d_q, d_p.to(d_q.dtype), d_f[0] if d_f else None)
        return local, params

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        raise KernelError(
            "Operators that autograd differentiates take no rows of edges.",
            given="mode=domain_parallel",
            allowed="mode=sar, no_remat or one_shot",
        )


def edge_queries(q: Tensor, weight: Tensor, heads: int) -> Tensor:
    """p of ``EdgeDotAttention`` [M, K F] for keys k_j + W f_ji: ``p_i = W^T q_i`` per head, of q [M, K D] and W [K D, F]."""
    return torch.einsum("mkd,kdf->mkf", q.unflatten(1, (heads, -1)), weight.unflatten(0, (heads, -1))).flatten(1)


def edge_values(sums: Tensor, weight: Tensor, heads: int) -> Tensor:
    """What values v_j + W f_ji add to the output [M, K D]: ``W t_i`` per head, of t [M, K F] and W [K D, F]."""
    return torch.einsum("mkf,kdf->mkd", sums.unflatten(1, (heads, -1)), weight.unflatten(0, (heads, -1))).flatten(1)


def join_softmaxes(outputs: Sequence[Tensor], log_sums: Sequence[Tensor]) -> Tensor:
    """One softmax over several sets of edges into the same rows, [M, K D], from those over each of them; differentiable.

        out_i = sum over sets r of w_ri out_ri        w_ri = exp(l_ri) / sum over s of exp(l_si)

    Args:
        outputs: [M, K D] each, of ``DotAttention`` with ``log_sums``.
        log_sums: [M, K] each, -inf where a row has no edge in the set; the result is 0 where it has none in any.
    """
    stacked = torch.stack(tuple(log_sums))
    isolated = (stacked == -torch.inf).all(0)
    weights = torch.softmax(stacked.masked_fill(isolated, 0.0), 0)
    parts = [
        rows.unflatten(1, (w.shape[1], -1)) * w[:, :, None].to(rows.dtype) for rows, w in zip(outputs, weights, strict=True)
    ]
    return torch.stack(parts).sum(0).flatten(1)
