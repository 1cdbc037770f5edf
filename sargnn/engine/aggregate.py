"""The engine that models talk to: aggregation, linear and node-wise operators, draws, and aggregates that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from sargnn.backends.base import Backend, Kernel
from sargnn.backends.choose import choose_kernel, make_backend, make_operation
from sargnn.backends.device import device_of
from sargnn.backends.memory import Pool
from sargnn.bf16 import leave_products, products_in_bf16
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.engine.grouped import Grouped, Outputs
from sargnn.engine.modes import MODES
from sargnn.engine.modes.base import Call, Mode
from sargnn.engine.operators import FusedOperators, Operators, StockOperators
from sargnn.engine.reducers.base import Fold, Reducer, Tensors, WithPartials
from sargnn.engine.segments import KeepLayers
from sargnn.engine.workspace import Workspace
from sargnn.errors import ConfigError
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import AGGREGATION
from sargnn.resolve import resolve
from sargnn.rng import Draw, Purpose
from sargnn.tracking.memory import trim

T = TypeVar("T")
_ROWS = "rows of a process and of a worker"
_TRANSIENT_TABLES = 3
"""Of the worker that has the turn, beside those that all ranks of its process read or write to."""
_SHOWN_SHARE = 0.4
"""Of the room for tables, what a group of columns takes where there must be groups; what is left saves ways to the disk."""


class ConstantFoundError(Exception):
    """What ends a forward pass that was to compute a constant, and nothing else (``Engine.find_constant``)."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is told about a run.

    Attributes:
        mode: a key of ``MODES``, or the target ``FILE.py:NAME`` of a mode outside the package.
        keep: what the mode holds for the backward pass: fetched ``rows``, or ``all``: attention's scores, too.
        kernel: ``auto``, a key of ``KERNELS``, or a target.
        prefetch_depth: how many rounds of the exchange are posted ahead.
        seed: of the dropout masks.
        cache_static: keep aggregates of constant rows over the epochs; a baseline mode never does.
        half_products: take products of fp32 tables of their entries rounded to bf16.
        wire: what fp32 rows are rounded to on their way to other workers; None: nothing is.
        keep_layers: whose inputs survive until backward (``engine.segments``).
        column_groups: in how many groups of columns, or of heads, aggregations are made; None: as there is room.
    """

    mode: str
    keep: Literal["rows", "all"] = "rows"
    kernel: str = "auto"
    prefetch_depth: int = 1
    seed: int = 0
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    cache_static: bool = True
    half_products: bool = False
    wire: torch.dtype | None = None
    keep_layers: KeepLayers = "all"
    column_groups: int | None = None


class Engine:
    """One worker's engine. Everything that it changes belongs to it, so several engines may live in one process. Raises
    ``ConfigError`` where scores are to be kept, and autograd decides what is.

    Args:
        make_pool: makes the pool, given whether it is ``enabled``.
        within_servers: rows travel between the workers of a server only.

    Attributes:
        operators: linear and node-wise operators: stock in a baseline mode, else fused.
        splits_columns: whether labels stay apart from constant rows, so that the rows' aggregate may be kept.
        epoch: what masks are drawn for.
        keeps_constants: whether the message flow at hand comes again every epoch, so that its constants are worth keeping.
    """

    def __init__(
        self, group: Group, settings: EngineSettings, *, make_pool: Callable[..., Pool] = Pool, within_servers: bool = False
    ) -> None:
        self.group, self.profile, self.keep_layers = group, group.profile, settings.keep_layers
        self.seed, self.device, self.dtype = settings.seed, settings.device, settings.dtype
        self.place = device_of(settings.device)
        self.profile.synchronize = self.place.synchronize
        self.half_products = settings.half_products
        self.mode: Mode = resolve("training mode", MODES, settings.mode)()
        if settings.keep == "all":
            if self.mode.plain_autograd:
                raise ConfigError("What autograd differentiates keeps what autograd keeps.", given="mode.keep=all")
            self.mode.keeps_scores = True
        self._kernel_name = settings.kernel
        self.backend: Backend = make_backend(settings.kernel, self.device)
        peers = group.within if within_servers else group
        baseline = self.mode.is_baseline
        self.splits_columns = not baseline
        self.caches_constants = settings.cache_static and self.splits_columns
        self.pool = make_pool(enabled=self.backend.pools and not baseline)
        take = None if self.pool.spills else self.pool.empty  # gloo writes to buffers while their rank waits
        self.exchange = Exchange(peers, settings.prefetch_depth, self.backend.moves, settings.wire, self.pool.show, take)
        work = Workspace(self.pool, group.profile, self.half_products, self.backend)
        self.operators: Operators = StockOperators(group, work) if baseline else FusedOperators(group, work)
        self.column_groups = settings.column_groups
        self.table_room: int | None = None
        self.epoch = 0
        self.keeps_constants = True
        self._constants: dict[tuple[int, int], tuple[object, LayerPlan, Callable[[], Any]]] = {}
        self._finding = False
        self._found: Any = None
        self._kernels: dict[str, Kernel] = {}
        self._operations: dict[str, Any] = {}

    @contextmanager
    def rounds_products(self) -> Iterator[None]:
        """Within it all products are taken as ``half_products`` says, also those of a user's modules and of the baseline.

        PyTorch has one precision of products for a process: another rank of this process finds it as it was.
        """
        if not self.half_products:
            yield
            return
        with products_in_bf16(), self.group.putting_away(leave_products):
            yield

    def kernel(self, operation: str) -> Kernel:
        """The kernel that serves an operation such as ``sum``; chosen once. Raises ``KernelError`` with every reason."""
        if operation not in self._kernels:
            self._kernels[operation] = choose_kernel(
                self._kernel_name, operation, self.device, self.dtype, autograd=self.mode.plain_autograd
            )
        return self._kernels[operation]

    @property
    def served(self) -> set[str]:
        return set(self._kernels)

    @property
    def kernels(self) -> set[str]:
        return {kernel.name for kernel in self._kernels.values()}

    def operation(self, name: str) -> Any:
        if name not in self._operations:
            self._operations[name] = make_operation(
                self.kernel(name), name, profile=self.profile, autograd=self.mode.plain_autograd, dtype=self.dtype
            )
        return self._operations[name]

    def why_rows(self, reducer: Reducer) -> str | None:
        """Why all cut edges are aggregated where their destinations are; None: partial results may travel, too."""
        if not self.mode.takes_partials:
            return f"mode={self.mode.name} has no partial results"
        if not isinstance(reducer, WithPartials) or not reducer.has_partials:
            return reducer.no_partials
        if not getattr(self.operation(reducer.operation), "lists_sources", False):
            return f"'{reducer.operation}' of kernel={self.kernel(reducer.operation).name} has no partial results"
        return None

    def aggregate(
        self,
        plan: LayerPlan,
        reducer: Reducer,
        exchanged: Tensors,
        dest_local: Tensors = (),
        params: Tensors = (),
        *,
        given: bool = False,
    ) -> Tensors:
        """The one call that models make: the reducer's outputs [M, ...], differentiable in the first three tuples.

        Args:
            exchanged: [N, F_t] each; travel to the peers that need the rows. Messages that read no row have F_t = 0.
            dest_local: [M, ...] each; stay with the destination.
            params: replicated; their gradients are this worker's sums, completed by the step's all-reduce.
            given: nobody reads or writes to ``exchanged`` afterwards, but the backward pass.
        """
        outputs = self.aggregate_in_groups(plan, reducer, exchanged, dest_local, params, given=given)
        return tuple(out if isinstance(out, Tensor) else out.joined(self.pool) for out in outputs)

    def aggregate_in_groups(
        self,
        plan: LayerPlan,
        reducer: Reducer,
        exchanged: Tensors,
        dest_local: Tensors = (),
        params: Tensors = (),
        *,
        given: bool = False,
        takes_moments: bool = False,
    ) -> tuple[Tensor | Grouped, ...]:
        """As ``aggregate``; an output that is made in groups of columns stays in them.

        ``takes_moments``: the first output goes to a batch norm that takes statistics of it.
        """
        training = torch.is_grad_enabled() and any(t.requires_grad for t in (*exchanged, *dest_local, *params))
        widths = tuple(t.shape[1] for t in exchanged)
        scores: dict[int, Tensor] | None = {} if training and self.mode.keeps_scores else None
        groups = 1 if scores is not None else self._groups(plan, reducer, widths, exchanged[0].element_size())
        fold = Fold(
            plan,
            self.operation(reducer.operation),
            self.backend,
            self.pool,
            self.profile,
            exchanged[0].dtype,
            self.half_products,
            scores=scores,
        )
        parts = reducer.parts(widths[0], groups) if groups > 1 else ()
        outputs = Outputs(takes_moments) if parts else None
        call = Call(
            reducer=reducer,
            fold=fold,
            exchange=self.exchange,
            widths=widths,
            exchanged_needs_grad=any(t.requires_grad and t.shape[1] for t in exchanged),
            training=training,
            given=given,
            parts=parts,
            outputs=outputs,
        )
        with self.profile.span(AGGREGATION):
            out = self.mode.run(call, exchanged, dest_local, params)
        return out if outputs is None or not outputs.groups else outputs.grouped(out)

    def _groups(self, plan: LayerPlan, reducer: Reducer, widths: tuple[int, ...], item: int) -> int:
        """The same number on all ranks."""
        if self.column_groups is not None or self.table_room is None:
            return self.column_groups or 1
        together, each = self.most_rows(plan)
        row_bytes = sum(widths) * item
        room = self.table_room - _TRANSIENT_TABLES * each * row_bytes
        shown = together * row_bytes * (2 if reducer.needs_src_in_backward else 1)
        if shown <= room:
            return 1
        return min(max(widths), math.ceil(shown / (_SHOWN_SHARE * room))) if room > 0 else max(widths)

    def most_rows(self, plan: LayerPlan) -> tuple[int, int]:
        """The largest process's input rows, and the largest worker's; all ranks must ask for the first time together."""
        if _ROWS not in plan.kept:
            near = self.group.near or range(self.group.rank, self.group.rank + 1)
            rows = [int(count) for count in self.group.gather(torch.tensor(plan.num_rows))]
            processes = [rows[first : first + len(near)] for first in range(0, len(rows), len(near))]
            plan.kept[_ROWS] = max(map(sum, processes)), max(rows)
        largest: tuple[int, int] = plan.kept[_ROWS]
        return largest

    def reset_tables(self) -> None:
        """Give idle tables and the exchange's buffers back to the system."""
        self.pool.reset()
        self.exchange.reset()

    def agree_on_room(self) -> None:
        """Make aggregations in groups of columns from now on, where the tables that all ranks of a process read or write to at
        one time would have no room. All ranks must call it.
        """
        if self.pool.spills:  # on all ranks alike
            trim()
            self.table_room = min(int(room) for room in self.group.gather(torch.tensor(self.pool.room())))

    def constant(self, owner: object, plan: LayerPlan, compute: Callable[[], T]) -> T:
        """What ``compute()`` gives for ``owner`` on ``plan``: computed once and kept where that is allowed. Without autograd.

        For aggregates of rows that never change: the caller guarantees that ``compute`` gives the same values every time for
        this owner and plan. A plan may bring it: ``LayerPlan.constant``.
        """
        if plan.constant is not None:
            brought: Any = plan.constant
            return cast(T, brought)
        key = (id(owner), id(plan))
        if key in self._constants:
            kept: T = self._constants[key][2]()
            return kept
        with torch.no_grad():
            value = compute()
        if self._finding:
            self._found = value
            raise ConstantFoundError
        if self.caches_constants and self.keeps_constants:
            self._constants[key] = (owner, plan, self._kept(value))  # holding both keeps their ids from being reused
        return value

    def _kept(self, value: Any) -> Callable[[], Any]:
        if isinstance(value, Tensor):
            return self.pool.keep(value)
        given = [self.pool.keep(tensor) for tensor in value]
        return lambda: tuple(give() for give in given)

    def find_constant(self, forward: Callable[[], Any]) -> Any:
        """The first constant that a forward pass computes, which ends there; None if it computes none. It is not kept."""
        self._finding, self._found = True, None
        try:
            with torch.no_grad(), suppress(ConstantFoundError):
                forward()
        finally:
            self._finding = False
        constant, self._found = self._found, None
        return constant

    def forget_constants(self) -> None:
        self._constants.clear()

    @property
    def holds_constants(self) -> bool:
        return bool(self._constants)

    def draw(self, purpose: Purpose, layer: int, p: float) -> Draw | None:
        """This epoch's draw; None where nothing is dropped."""
        return Draw(self.seed, self.epoch, purpose, layer, p) if p else None
