"""A module's norms, activations, linear maps and sums over tables of rows, run by the engine's operators.

PyTorch keeps a table for each of norm, activation, dropout and linear map. Here the result of a norm or an activation notes
what it was made of, so that the next stage is made straight from the norm's input, in one pass (``engine.norm``): autograd
then holds that input alone, and the results between die with their Python names. A linear map that reads the last result
rebuilds it in backward (``engine.rebuild``). In a baseline mode only a norm's statistics are this project's.

Nothing here knows which function the module called, or with which arguments (``row_calls.py``).

Letters: N rows, F features, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Activation
from sargnn.backends.memory import Pool
from sargnn.engine.aggregate import Engine
from sargnn.engine.norm import Norm, apply_norm, batch_statistics, norm_act_drop, normalise
from sargnn.engine.operators import FusedOperators
from sargnn.engine.rebuild import rebuild_of, rebuilt_by
from sargnn.engine.row_functions import fork
from sargnn.engine.workspace import Workspace
from sargnn.modules.tag import Mark, is_plain, made_of, mark_of, note, note_made, tag_of
from sargnn.profile import NODEWISE
from sargnn.rng import Draw


@dataclass(frozen=True)
class Stage:
    """What a table was made of: x [N, F], perhaps a batch norm, and ``relu``, ``elu`` or, before one, no activation."""

    x: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    norm: Norm | None = None
    activation: str | None = None


@dataclass(frozen=True)
class Shifted:
    """A table that is the sum of x [N, ...] and a vector [1, F]."""

    x: Tensor
    vector: Tensor


@dataclass(frozen=True)
class Product:
    """A table that is the product of x [N, K, D] and a vector."""

    x: Tensor
    vector: Tensor


def stage_of(tensor: Tensor) -> Stage | None:
    """None where it is not known, or somebody waits for the tensor's gradient: the next stage would pass it by."""
    return None if tensor._backward_hooks or tensor.retains_grad else made_of(tensor, Stage)


def again_of(x: Tensor) -> Callable[[], Tensor] | None:
    """What gives ``x`` [N, F] again in backward, where that costs no table; else None. The same answer on all workers, since
    they exchange rows that they have again."""
    tag = tag_of(x)
    if not (is_row_major(x) and (tag.shared or tag.held)):
        return rebuild_of(x)
    held, version = x.detach(), x._version

    def again() -> Tensor:
        assert held._version == version, "what rows are rebuilt from was written to"
        return held

    return again


def is_row_major(x: Tensor, dim: int = 0) -> bool:
    """Whether rows along a dimension lie as in a contiguous tensor, however many there are.

    PyTorch calls any tensor of one row contiguous, or of none, so that its answer differs from worker to worker.
    """
    expected = 1
    for place in range(x.dim() - 1, -1, -1):
        if x.stride(place) != expected and (place == dim or x.shape[place] != 1):
            return False
        expected *= max(x.shape[place], 1)
    return True


def reader(pool: Pool, x: Tensor) -> Tensor:
    """``x`` [N, F] for one more reader, without a table more in backward; ``x`` itself where no gradients are added up.

    Autograd adds up the gradients of a tensor's readers; where one of them lies in memory from a pool it needs a further table
    for the sum. ``fork`` adds in place, but wants to know of both readers beforehand. A user's module does not say how often it
    reads its rows, so each reader gets one branch of a fork and the next one finds the other branch on the tensor. A branch is
    rebuilt in the way that ``x`` is.
    """
    if not (pool.enabled and x.requires_grad and torch.is_grad_enabled()):
        return x
    rest = tag_of(x).rest
    rows, other = fork(pool, x if rest is None else rest)
    note(x, rest=other)
    return rows


class RowOperators:
    """The operators of one engine, whose mode decides whether anything is fused, for tables with marks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._work = Workspace(engine.pool, engine.profile, backend=engine.backend)
        self.fuses = isinstance(engine.operators, FusedOperators)

    def is_table(self, x: Any, mark: Mark | None) -> bool:
        """Whether ``x`` is a table [N, F] of node rows that the fused operators serve."""
        return self.fuses and mark is not None and _is_floats(x) and is_plain(x, mark) and mark.rows.kind == "nodes"  # type: ignore[union-attr]

    def reads(self, x: Tensor) -> Tensor:
        return reader(self._engine.pool, x) if self.fuses else x

    def batch_norm(
        self,
        x: Tensor,
        running: tuple[Tensor, Tensor] | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Training-time batch norm over the rows of all workers; every rank must call it.

        Args:
            x: [N, C] or [N, C, ...], rows along the first dimension.
            running: mean and variance [C] to move, if there are any.
            weight, bias: [C] or None: 1 and 0.
        """
        if x.dim() > 2:
            moved = x.movedim(1, -1)
            table = moved.reshape(moved.numel() // max(x.shape[1], 1), x.shape[1])
            return self.batch_norm(table, running, weight, bias, momentum, eps).view(moved.shape).movedim(-1, 1)
        fused = self.fuses and _is_floats(x)
        weight = x.new_ones(x.shape[1]) if weight is None else weight
        bias = x.new_zeros(x.shape[1]) if bias is None else bias
        shifted = made_of(x, Shifted) if fused else None
        base = x if shifted is None else shifted.x.reshape(x.shape)
        x, bounds = self.reads(base.contiguous() if fused else base), (0, len(x))
        views = None if running is None else (running[0].view(1, -1), running[1].view(1, -1))
        by = self._work.rows if fused else None
        if shifted is None or views is None:
            norm = batch_statistics(x, self._engine.group, bounds, eps, views, momentum, by=by)
        else:  # the running mean is that of x + shift
            with torch.no_grad():
                moved = views[0] - shifted.vector
                norm = batch_statistics(x, self._engine.group, bounds, eps, (moved, views[1]), momentum, by=by)
                torch.add(moved, shifted.vector, out=views[0])
        with self._engine.profile.span(NODEWISE):
            out = normalise(x, weight, bias, norm, self._engine.group, self._engine.pool)
        if not (fused and out.requires_grad):
            return out
        gamma, beta, pool = weight.detach(), bias.detach(), self._engine.pool
        held = pool.keep(x)
        note_made(out, Stage(x, weight, bias, norm), x)
        return rebuilt_by(out, lambda: apply_norm(held(), gamma, beta, norm, pool))

    def _is_vector(self, x: Tensor, vector: Any) -> bool:
        """Whether it is no rows, but one number for each of a row's."""
        if not (self.fuses and isinstance(vector, Tensor) and x.dim() > 1 and x.is_contiguous() and x.device.type == "cpu"):
            return False
        same = vector.dtype == x.dtype and mark_of(vector) is None and x.dtype in (torch.float32, torch.float64)
        while vector.dim() > x.dim() - 1 and vector.shape[0] == 1:
            vector = vector[0]
        return same and vector.shape == x.shape[1:] and (x.requires_grad or vector.requires_grad)

    def plus_vector(self, x: Tensor, vector: Any) -> Tensor | None:
        """``x + vector`` of rows [N, ...] and as many numbers as a row; None if the vector is no such. Noted so that a batch
        norm of it, which does not depend on the vector, reads x."""
        if not self._is_vector(x, vector):
            return None
        read = self.reads(x)
        out: Tensor = _PlusVector.apply(read, vector, self._engine.pool)
        flat = vector.detach().reshape(1, math.prod(x.shape[1:]))
        if out.requires_grad:
            note_made(out, Shifted(read, flat), read)
        return out

    def same_rows(self, x: Tensor, out: Tensor) -> Tensor:
        """``out``, the rows of x in another shape; what is noted of x holds for it."""
        shifted = made_of(x, Shifted)
        if shifted is not None and out.dim() == 2 and len(out) == len(x):
            note_made(out, shifted, shifted.x)
        return out

    def times_vector(self, x: Tensor, vector: Any) -> Tensor | None:
        """``x * vector`` of rows [N, K, D] and [1, K, D] or [K, D], noted so that its sum over the last dimension is
        differentiated without tables in between; None if the vector is no such."""
        if x.dim() != 3 or not self._is_vector(x, vector):
            return None
        out: Tensor = _TimesVector.apply(x, vector, self._engine.pool)
        note_made(out, Product(x, vector), x, vector)
        return out

    def sum_of_last(self, product: Tensor) -> Tensor | None:
        """[N, K], of a product of [N, K, D] with a vector; None where it is not known to be one."""
        made = made_of(product, Product)
        if made is None:
            return None
        dots: Tensor = _HeadDot.apply(self.reads(made.x), made.vector, product.detach(), self._engine.pool)
        return dots

    def activate(self, name: str, x: Tensor, ids: Tensor) -> Tensor | None:
        """``relu`` or ``elu`` straight from what ``x`` was made of; None where PyTorch's own keeps no more than this would.
        ``ids``: int64 [N], original."""
        stage = stage_of(x)
        if stage is not None and stage.activation is None and torch.is_grad_enabled():
            return self._from(stage, name, ids, None)
        if name == "elu" and x.requires_grad and torch.is_grad_enabled() and is_row_major(x):
            return self._from(Stage(self.reads(x)), name, ids, None)
        return None

    def relu(self, x: Tensor) -> Tensor:
        """ReLU of rows whose result autograd keeps."""
        out: Tensor = _Relu.apply(self.reads(x), self._engine.pool)
        return note(out, held=True) if out.requires_grad else out

    def relu_(self, x: Tensor) -> Tensor | None:
        """ReLU in place of a norm's result, which is rebuilt from the norm's input; None where ``x`` is no such result."""
        stage = stage_of(x)
        if stage is None or stage.norm is None or stage.activation is not None or not torch.is_grad_enabled():
            return None
        assert stage.weight is not None and stage.bias is not None
        norm, scale, shift, pool = stage.norm, stage.weight.detach(), stage.bias.detach(), self._engine.pool
        held = pool.keep(stage.x)

        def before() -> Tensor:
            return apply_norm(held(), scale, shift, norm, pool)

        out: Tensor = _ReluInPlace.apply(x, stage.x.detach(), before)
        self._note_activated(out, stage, "relu")
        return rebuilt_by(out, lambda: before().relu_())

    def dropped(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor | None:
        """Activated rows, dropped, straight from what they were made of; None where that is not known."""
        stage = stage_of(x)
        if stage is None or stage.activation is None or not torch.is_grad_enabled():
            return None
        return self._from(stage, stage.activation, ids, draw)

    def _from(self, stage: Stage, activation: str, ids: Tensor, draw: Draw | None) -> Tensor:
        after = Activation(activation, ids, draw)
        out = norm_act_drop(self._work, self._engine.group, stage.x, after, stage.norm, stage.weight, stage.bias, heard=True)
        if draw is None:
            self._note_activated(out, stage, activation)
        return out

    def _note_activated(self, out: Tensor, stage: Stage, activation: str) -> None:
        if out.requires_grad:
            note_made(out, replace(stage, activation=activation), stage.x)

    def linear(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor | None:
        """``x W^T + b`` of [N, in], [out, in] and [out]; None where they are not those of a map of rows, so that PyTorch says
        what is wrong."""
        fits = isinstance(weight, Tensor) and weight.dim() == 2 and weight.shape[1] == x.shape[1] and weight.dtype == x.dtype
        if not fits or mark_of(weight) is not None or torch.is_autocast_enabled("cpu"):
            return None
        if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype or mark_of(bias) is not None):
            return None
        return self._engine.operators.linear([self.reads(x)], weight, bias)

    def add(self, table: Tensor, other: Any, *, onto: bool = False) -> Tensor | None:
        """The sum of two tables; None where they are not of one shape and type. ``onto``: nobody but the caller knows
        ``table``, who has no further use for it."""
        if not self.is_table(other, mark_of(other)) or table.shape != other.shape or table.dtype != other.dtype:
            return None
        if not (table.is_contiguous() and other.is_contiguous()):
            return None
        if onto and table.requires_grad and stage_of(table) is None and self._engine.pool.is_only_holder(table):
            added: Tensor = _AddOnto.apply(table, self.reads(other))
            return added
        return self._engine.operators.add(self.reads(table), self.reads(other))


class _HeadDot(torch.autograd.Function):
    """``s_nk = sum over d of x_nkd a_kd``. Backward: d x_nkd = g_nk a_kd, d a_kd = sum over n of g_nk x_nkd. Saves x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vector: Tensor, product: Tensor, pool: Pool) -> Tensor:
        ctx.save_for_backward(x, vector)
        ctx.pool = pool
        return product.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, vector = ctx.saved_tensors
        count, heads, width = x.shape
        d_x = ctx.pool.empty(count, heads * width, x).view(x.shape)
        torch.mul(grad[:, :, None], vector.reshape(1, heads, width), out=d_x)
        d_vector = torch.stack([grad[:, k] @ x[:, k] for k in range(heads)])
        return d_x, d_vector.view(vector.shape), None, None


def _like(pool: Pool, x: Tensor) -> Tensor:
    """Memory for a table as large as x [N, ...]; no view, which autograd would not let anyone write to."""
    return pool.empty(len(x), math.prod(x.shape[1:]), x).view(x.shape).data


class _AddOnto(torch.autograd.Function):
    """``y = table + other`` in the memory of ``table``, which no gradient needs. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, other: Tensor) -> Tensor:
        ctx.mark_dirty(table)
        return table.add_(other)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


class _PlusVector(torch.autograd.Function):
    """``y = x + v`` in memory from the pool. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vector: Tensor, pool: Pool) -> Tensor:
        ctx.shape = vector.shape
        return torch.add(x, vector, out=_like(pool, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, grad.sum(0).view(ctx.shape) if ctx.needs_input_grad[1] else None, None


class _TimesVector(torch.autograd.Function):
    """``y = x * v`` in memory from the pool. Saves x, which has other readers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vector: Tensor, pool: Pool) -> Tensor:
        ctx.save_for_backward(x, vector)
        return torch.mul(x, vector, out=_like(pool, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, vector = ctx.saved_tensors
        return grad * vector, (grad * x).sum(0).view(vector.shape), None


class _Relu(torch.autograd.Function):
    """``y = max(x, 0)`` in memory from the pool. Saves y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        out = torch.clamp_min(x, 0, out=pool.empty_like(x))
        ctx.save_for_backward(out)
        ctx.pool = pool
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.mul(grad, out > 0, out=ctx.pool.empty_like(out)), None


class _ReluInPlace(torch.autograd.Function):
    """``y = max(y, 0)`` in place. Saves x, of which ``before()`` gives y again."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, before: Any) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(x)
        ctx.before = before
        return y.relu_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        _ = ctx.saved_tensors  # raises if it was written to since
        return grad.masked_fill(ctx.before() <= 0, 0), None, None


def _is_floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 2 and x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu"
