"""How messages of edges become rows: the folds of the generic reducer (``engine.reducers.generic`` has the equations).

Letters: M output rows, E edges of a run, W columns, K heads, D columns of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.backends.base import Folds
from sargnn.engine.reducers.base import Tensors
from sargnn.plan.layer_plan import LayerPlan

if TYPE_CHECKING:
    from sargnn.engine.reducers.generic import EdgeRun


class MessageFold(ABC):
    """Folds messages [E, W] of runs of edges, in any order of the runs. Takes ``takes`` messages and keeps ``keeps`` tensors
    for backward.
    """

    takes: int = 1
    keeps: int = 0

    def __init__(self, width: int) -> None:
        self.width = width

    @abstractmethod
    def init(self, plan: LayerPlan, like: Tensor) -> Any:
        """The empty accumulator."""

    @abstractmethod
    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: Any) -> None:
        """Fold a run, in place."""

    @abstractmethod
    def finish(self, plan: LayerPlan, state: Any) -> tuple[Tensor, Tensors]:
        """The output, and what backward needs."""

    @abstractmethod
    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> Any:
        """What ``backward`` reads. grad: of the output."""

    @abstractmethod
    def backward(self, run: EdgeRun, messages: Tensors, state: Any) -> Tensors:
        """The gradients of a run's messages, [E, W] each."""

    @abstractmethod
    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        """The output from all edges at once, in differentiable operators."""


class Sum(MessageFold):
    """``out_i = sum of m_e``; with ``mean`` divided by the in-degree."""

    def __init__(self, width: int, *, mean: bool = False) -> None:
        super().__init__(width)
        self.mean = mean

    def _scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return plan.in_degrees.clamp(min=1).to(like.dtype).reciprocal_()[:, None]

    def init(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return like.new_zeros(plan.num_out, self.width)

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: Tensor) -> None:
        by.add_to_ends(messages[0], run.dst, state)

    def finish(self, plan: LayerPlan, state: Tensor) -> tuple[Tensor, Tensors]:
        return (state.mul_(self._scale(plan, state)) if self.mean else state), ()

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> Tensor:
        return grad * self._scale(plan, grad) if self.mean else grad

    def backward(self, run: EdgeRun, messages: Tensors, state: Tensor) -> Tensors:
        return (state.index_select(0, run.dst),)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        total = messages[0].new_zeros(plan.num_out, self.width).index_add(0, run.dst, messages[0])
        return total * self._scale(plan, total) if self.mean else total


class Product(MessageFold):
    """``out_i = product of m_e``, column by column; 1 without edges.

    With p_i the product of the messages that are no zeros and z_i the number of zeros: out_i = p_i where z_i = 0, else 0.
    Backward: d m_e = g_i p_i / m_e where z_i = 0; g_i p_i where m_e is the only zero; else 0.
    """

    keeps = 2

    def init(self, plan: LayerPlan, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_ones(plan.num_out, self.width), like.new_zeros(plan.num_out, self.width)

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: tuple[Tensor, Tensor]) -> None:
        products, zeros = state
        factors = torch.where(messages[0] == 0, 1, messages[0])
        products.scatter_reduce_(0, run.dst.long()[:, None].expand_as(factors), factors, "prod")
        by.add_to_ends((messages[0] == 0).to(zeros.dtype), run.dst, zeros)

    def finish(self, plan: LayerPlan, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensors]:
        products, zeros = state
        return torch.where(zeros > 0, 0, products), state

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> tuple[Tensor, Tensor]:
        products, zeros = kept
        return grad * products, zeros

    def backward(self, run: EdgeRun, messages: Tensors, state: tuple[Tensor, Tensor]) -> Tensors:
        scaled, zeros = (table.index_select(0, run.dst) for table in state)
        message = messages[0]
        of_others = torch.where(zeros == 0, scaled / torch.where(message == 0, 1, message), 0)
        return (torch.where((message == 0) & (zeros == 1), scaled, of_others),)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        index = run.dst.long()[:, None].expand_as(messages[0])
        return messages[0].new_ones(plan.num_out, self.width).scatter_reduce(0, index, messages[0], "prod")


@dataclass(frozen=True)
class _Maxima:
    """Attributes: best [M, W], so far. winner: int32 [M, W], numbers of edges. rank: int32 by number of the edge."""

    best: Tensor
    winner: Tensor
    rank: Tensor


class Max(MessageFold):
    """``out_i = max of m_e``, column by column; 0 without edges."""

    keeps = 1

    def init(self, plan: LayerPlan, like: Tensor) -> _Maxima:
        shape = plan.num_out, self.width
        winner = torch.full(shape, Folds.nobody, dtype=torch.int32, device=like.device)
        return _Maxima(like.new_full(shape, -torch.inf), winner, edge_ranks(plan))

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: _Maxima) -> None:
        by.fold_max(messages[0], run.dst, run.first, state.rank, state.best, state.winner)

    def finish(self, plan: LayerPlan, state: _Maxima) -> tuple[Tensor, Tensors]:
        return state.best.masked_fill_((plan.in_degrees == 0)[:, None], 0), (state.winner,)

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, kept[0]

    def backward(self, run: EdgeRun, messages: Tensors, state: tuple[Tensor, Tensor]) -> Tensors:
        grad, winner = (t.index_select(0, run.dst) for t in state)
        own = torch.arange(run.first, run.first + len(run), dtype=torch.int32, device=grad.device)
        return (grad.masked_fill_(winner != own[:, None], 0),)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        with torch.no_grad():
            state = self.init(plan, messages[0])
            by.fold_max(messages[0].detach(), run.dst, 0, state.rank, state.best, state.winner)
        taken = messages[0].gather(0, state.winner.clamp(min=0).long())
        return taken.masked_fill((plan.in_degrees == 0)[:, None], 0)


@dataclass(frozen=True)
class _Softmax:
    """Attributes: largest [M, K], total [M, K] and out [M, W], so far."""

    largest: Tensor
    total: Tensor
    out: Tensor


@dataclass(frozen=True)
class _SoftmaxGradients:
    """Attributes: log_total [M, K], log sum exp. grad [M, W], of the output. dot [M, K]: <grad_i, out_i> per head."""

    log_total: Tensor
    grad: Tensor
    dot: Tensor


class SoftmaxSum(MessageFold):
    """``out_i = sum of softmax(l_e) v_e``, per head; 0 without edges. Takes l [E, K] and v [E, K D]; ``width`` is K D."""

    takes = 2
    keeps = 2

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width)
        self.heads = heads

    def init(self, plan: LayerPlan, like: Tensor) -> _Softmax:
        shape = plan.num_out, self.heads
        return _Softmax(like.new_full(shape, -torch.inf), like.new_zeros(shape), like.new_zeros(plan.num_out, self.width))

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: _Softmax) -> None:
        by.fold_softmax(messages[0], messages[1], run.dst, state.largest, state.total, state.out)

    def finish(self, plan: LayerPlan, state: _Softmax) -> tuple[Tensor, Tensors]:
        total = state.total.masked_fill(state.total == 0, 1)
        self._by_head(state.out).div_(total[:, :, None])
        return state.out, (total.log_().add_(state.largest), state.out)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.heads, self.width // self.heads)

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> _SoftmaxGradients:
        log_total, out = kept
        return _SoftmaxGradients(log_total, grad, (self._by_head(grad) * self._by_head(out)).sum(2))

    def backward(self, run: EdgeRun, messages: Tensors, state: _SoftmaxGradients) -> Tensors:
        logits, values = messages
        weight = (logits - state.log_total.index_select(0, run.dst)).exp_()
        grad = self._by_head(state.grad.index_select(0, run.dst))
        along = (grad * self._by_head(values)).sum(2).sub_(state.dot.index_select(0, run.dst))
        return weight * along, grad.mul_(weight[:, :, None]).flatten(1)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        logits, values = messages
        weight = (logits - _log_sum_exp(plan, run, logits).index_select(0, run.dst)).exp()
        weighted = (self._by_head(values) * weight[:, :, None]).flatten(1)
        return values.new_zeros(plan.num_out, self.width).index_add(0, run.dst, weighted)


class LogSumExp(MessageFold):
    """``out_i = log sum of exp(m_e)``, column by column; 0 without edges."""

    keeps = 1

    def init(self, plan: LayerPlan, like: Tensor) -> _Softmax:
        shape = plan.num_out, self.width
        return _Softmax(like.new_full(shape, -torch.inf), like.new_zeros(shape), like.new_zeros(plan.num_out, 0))

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: _Softmax) -> None:
        by.fold_softmax(messages[0], messages[0][:, :0], run.dst, state.largest, state.total, state.out)

    def finish(self, plan: LayerPlan, state: _Softmax) -> tuple[Tensor, Tensors]:
        out = state.total.log_().add_(state.largest).masked_fill_((plan.in_degrees == 0)[:, None], 0)
        return out, (out,)

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, kept[0]

    def backward(self, run: EdgeRun, messages: Tensors, state: tuple[Tensor, Tensor]) -> Tensors:
        grad, out = (t.index_select(0, run.dst) for t in state)
        return ((messages[0] - out).exp_().mul_(grad),)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        return _log_sum_exp(plan, run, messages[0])


class Edges(MessageFold):
    """``out_e = m_e``: a row for each of this worker's edges."""

    def init(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return like.new_empty(plan.num_edges, self.width)

    def step(self, by: Folds, run: EdgeRun, messages: Tensors, state: Tensor) -> None:
        state[run.first : run.first + len(run)] = messages[0]

    def finish(self, plan: LayerPlan, state: Tensor) -> tuple[Tensor, Tensors]:
        return state, ()

    def backward_init(self, plan: LayerPlan, kept: Tensors, grad: Tensor) -> Tensor:
        return grad

    def backward(self, run: EdgeRun, messages: Tensors, state: Tensor) -> Tensors:
        return (state[run.first : run.first + len(run)],)

    def plain(self, by: Folds, plan: LayerPlan, run: EdgeRun, messages: Tensors) -> Tensor:
        return messages[0]


def edge_ranks(plan: LayerPlan) -> Tensor:
    """int32 by number of the edge: the rank of its source's original id among all that this worker sees."""
    shards = (plan.merged,) if plan.shards is None else plan.shards.values()
    ranks = [shard.block.src_id_rank.index_select(0, shard.block.src) for shard in shards if shard is not None]
    return torch.cat(ranks) if ranks else torch.zeros(0, dtype=torch.int32)


def _log_sum_exp(plan: LayerPlan, run: EdgeRun, logits: Tensor) -> Tensor:
    """[M, K], in differentiable operators; 0 without edges."""
    to = run.dst.long()[:, None].expand_as(logits)
    with torch.no_grad():
        largest = logits.new_zeros(plan.num_out, logits.shape[1]).scatter_reduce(0, to, logits, "amax", include_self=False)
    total = torch.zeros_like(largest).index_add(0, run.dst, (logits - largest.index_select(0, run.dst)).exp())
    return (total.masked_fill(total == 0, 1).log() + largest).masked_fill((plan.in_degrees == 0)[:, None], 0)
