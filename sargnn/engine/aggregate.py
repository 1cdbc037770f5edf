"""The engine that models talk to: aggregation, dropout, and the sums over all workers that batch norm needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.engine.dropout import dropout
from sargnn.engine.modes import MODES
from sargnn.engine.modes.base import Call, Mode
from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.kernels.dispatch import choose_operation
from sargnn.resolve import resolve
from sargnn.rng import Draw, Purpose
from sargnn.shards.plan import LayerPlan
from sargnn.spans import AGGREGATION, installed, span

T = TypeVar("T")


class Engine:
    """One worker's engine.

    Args:
        group: the workers.
        mode: a key of ``MODES``.
        kernel: ``auto`` or a key of ``KERNELS``.
        prefetch_depth: how many rounds of the exchange are posted ahead.
        seed: of the dropout masks.
        device, dtype: of all tensors.
        cache_static: keep aggregates of constant rows over the epochs; a baseline mode never does.

    Attributes:
        epoch: what masks are drawn for.
        keeps_constants: whether the message flow at hand comes again every epoch, so that its constants are worth keeping.
    """

    def __init__(
        self,
        group: Group,
        *,
        mode: str,
        kernel: str = "auto",
        prefetch_depth: int = 1,
        seed: int = 0,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        dtype: torch.dtype = torch.float32,
        cache_static: bool = True,
    ) -> None:
        self.group = group
        self.mode: Mode = resolve("training mode", MODES, mode)()
        self.kernel_name = kernel
        self.exchange = Exchange(group, prefetch_depth)
        self.seed, self.device, self.dtype = seed, device, dtype
        self.cache_static = cache_static
        POOL.enabled = self.lean
        POOL.reset()
        self.epoch = 0
        self.keeps_constants = True
        self._constants: dict[tuple[int, int], tuple[object, LayerPlan, Any]] = {}
        self._kernels: dict[str, Any] = {}

    def kernel_for(self, operation: str) -> Any:
        """The kernel that serves an operation; chosen once. Raises ``KernelError`` with each kernel's reasons."""
        if operation not in self._kernels:
            self._kernels[operation] = choose_operation(
                self.kernel_name, operation, self.device, self.dtype, autograd=not self.mode.lean, profile=installed()
            )
        return self._kernels[operation]

    def aggregate(self, plan: LayerPlan, reducer: Reducer, sent: Tensors, local: Tensors = (), params: Tensors = ()) -> Tensors:
        """The one call that models make.

        Args:
            plan: the layer's graph.
            reducer: how messages are folded.
            sent: [N, F_t] each; travel to the peers that need the rows.
            local: [M, ...] each; stay with the destination.
            params: replicated; their gradients are this worker's sums, completed by the step's all-reduce.

        Returns:
            The reducer's outputs [M, ...], differentiable in all three.
        """
        call = Call(
            plan=plan,
            reducer=reducer,
            operation=self.kernel_for(reducer.operation),
            exchange=self.exchange,
            sent_needs_grad=any(t.requires_grad for t in sent),
            training=torch.is_grad_enabled() and any(t.requires_grad for t in (*sent, *local, *params)),
        )
        with span(AGGREGATION):
            return self.mode.run(call, sent, local, params)

    @property
    def lean(self) -> bool:
        """Whether node-wise operators are fused: on a CPU, in every mode but the baseline."""
        return self.mode.lean and self.device.type == "cpu"

    def constant(self, owner: object, plan: LayerPlan, compute: Callable[[], T]) -> T:
        """What ``compute`` gives for ``owner`` on ``plan``, in every epoch the same: computed once where that is allowed.

        For aggregates of constant rows (the first layer without input dropout). Without autograd. That ``compute`` always gives
        the same for an owner and a plan is the caller's word: the rows themselves are not compared.
        """
        key = (id(owner), id(plan))
        if key in self._constants:
            kept: T = self._constants[key][2]
            return kept
        with torch.no_grad():
            value = compute()
        if self.cache_static and self.mode.lean and self.keeps_constants:
            self._constants[key] = (owner, plan, value)  # holding both keeps their ids from being reused
        return value

    def forget_constants(self) -> None:
        """Let go of all kept aggregates."""
        self._constants.clear()

    @property
    def holds_constants(self) -> bool:
        """Whether an aggregate of constant rows was kept so far."""
        return bool(self._constants)

    def dropout(self, x: Tensor, ids: Tensor, *, purpose: Purpose, layer: int, p: float) -> Tensor:
        """Dropout of rows [N, F] with original ids int64 [N]: the mask depends on seed, epoch, id, feature and layer only."""
        draw = self.draw(purpose, layer, p)
        return x if draw is None else dropout(x, ids, draw)

    def draw(self, purpose: Purpose, layer: int, p: float) -> Draw | None:
        """This epoch's draw; None where nothing is dropped."""
        return Draw(self.seed, self.epoch, purpose, layer, p) if p else None
