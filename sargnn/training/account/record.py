"""Recording what a run's steps and evaluations allocate, on the made-up graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, SampleConfig
from sargnn.config.memory import MemoryConfig
from sargnn.config.run import RunConfig
from sargnn.engine.modes.base import Held
from sargnn.engine.propagate import propagate
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.engine.segments import KeepLayers
from sargnn.models.base import Model
from sargnn.models.stack import GraphLayer
from sargnn.partition.cut import Part
from sargnn.shards.cover import shares_of
from sargnn.shards.plan import LayerPlan, RowCounts
from sargnn.tasks.correct_smooth import correct_and_smooth
from sargnn.training.account.made_up import made_up_part, target_rows
from sargnn.training.account.sizes import sizes_of_plans
from sargnn.training.account.step import (
    INPUTS,
    LAYER_PHASES,
    OPTIMIZER,
    HaloBytes,
    KernelBytes,
    LayerHalo,
    NodeBatches,
    ResultBytes,
    StepAccount,
)
from sargnn.training.account.trace import Trace, TracedPool
from sargnn.training.steps import OneStep

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer


SMOOTHING = "smoothing"
Prepare = Callable[["Trainer", Trace], Callable[[], None]]
"""Makes ready what is recorded, with a trainer of the made-up graph, and gives what does it."""


@contextmanager
def _phases_of(trainer: Trainer, trace: Trace) -> Iterator[None]:
    """Tell the record which layer runs: forward from where it begins, backward from where its output's gradient comes; and
    when it aggregates."""
    model, engine, hooks = trainer.model, trainer.engine, []
    aggregate = engine.aggregate

    def aggregating(*arguments: Any, **named: Any) -> Any:
        trace.aggregates = True
        try:
            return aggregate(*arguments, **named)
        finally:
            trace.aggregates = False

    def follow(number: int, layer: GraphLayer) -> None:
        def begin(*_: Any) -> None:
            trace.phase, trace.aggregates = LAYER_PHASES[0].format(number), False

        def backward(*_: Any) -> None:
            trace.phase, trace.aggregates = LAYER_PHASES[1].format(number), True

        def end(_: Any, __: Any, out: Any) -> None:
            if isinstance(out, torch.Tensor) and out.requires_grad:
                out.register_hook(backward)

        hooks.append(layer.register_forward_pre_hook(begin))
        hooks.append(layer.register_forward_hook(end))

    for number, layer in enumerate((module for module in model.modules() if isinstance(module, GraphLayer)), 1):
        follow(number, layer)
    engine.aggregate = aggregating  # type: ignore[method-assign]
    try:
        yield
    finally:
        del engine.aggregate
        for hook in hooks:
            hook.remove()


def _reducers_of(model: Model, plans: Sequence[LayerPlan]) -> Iterator[tuple[int, LayerPlan, Reducer]]:
    """Of layers that aggregate: the number, from 0, the plan and the reducer."""
    layers = (module for module in model.modules() if isinstance(module, GraphLayer))
    for number, (layer, plan) in enumerate(zip(layers, plans, strict=False)):
        if layer.uses_edges:
            yield number, plan, layer.reducer_on(plan)


def _batches_of(model: Model, plans: Sequence[LayerPlan]) -> tuple[NodeBatches, ...]:
    """Of layers whose reducer takes nodes with as many edges together, the largest such batches."""
    batches = []
    for number, plan, reducer in _reducers_of(model, plans):
        if (most := reducer.edges_at_once) is not None:
            degrees, nodes = plan.in_degrees.unique(return_counts=True)
            largest = int((degrees * nodes).argmax())
            degree = int(degrees[largest])
            batches.append(NodeBatches(number, min(int(nodes[largest]), max(1, most // max(degree, 1))), degree, most))
    return tuple(batches)


_warm: set[tuple[object, ...]] = set()
"""What this process has computed before."""


class Accounts:
    """The accounts of one run's steps.

    Args:
        make_trainer: ``training.build.make_trainer``.
        model: the run's, whose layers' choices tell accounts apart.
        labelled: the node type that has labels. message_rows: of the real graph's messages.
    """

    def __init__(
        self,
        make_trainer: Callable[..., Trainer],
        config: RunConfig,
        part: Part,
        num_classes: int,
        model: Model,
        *,
        labelled: int,
        message_rows: int,
    ) -> None:
        self._make_trainer, self._config, self._num_classes = make_trainer, config, num_classes
        self._alone = dataclasses.replace(
            config,
            world=1,
            batches=BatchesConfig(),
            sample=SampleConfig(),
            eval="full",
            memory_budget=MemoryConfig(),
            profile=False,
        )
        self._depth = len(model.uses_edges)
        self._part = made_up_part(part, num_classes, self._depth, labelled)
        self._message_rows = message_rows
        self._layers = [layer for layer in model.modules() if isinstance(layer, GraphLayer)]
        self._made: dict[Any, StepAccount] = {}
        self._libraries_are_there = False

    def load_libraries(self) -> None:
        """Train a step of the made-up graph, so that what libraries take is there before memory is measured: it is no longer
        in the accounts."""
        self._warm_up("step", self._training_step)
        self._libraries_are_there = True

    def step(
        self, counts: Sequence[RowCounts | None], *, micro_batches: bool, keep_layers: KeepLayers, constants: bool = True
    ) -> StepAccount:
        """Of a training step.

        Args:
            counts: of the real view's layers, by which each chooses what it does first.
            micro_batches: of a micro-batch; else of the view that the configuration has.
            constants: whether micro-batches have what is aggregated of constant rows.
        """
        return self._of(
            counts, "step", self._training_step, micro_batches=micro_batches, keep_layers=keep_layers, constants=constants
        )

    @staticmethod
    def _training_step(trainer: Trainer, trace: Trace) -> Callable[[], None]:
        def record() -> None:
            for epoch in range(2):
                trainer.engine.epoch, trace.phase = epoch, INPUTS
                trainer.model.train()
                trainer.model.zero_grad(set_to_none=True)
                trainer.loop.gradients()
                if trainer.optimization.optimizer is not None:
                    trace.phase = OPTIMIZER
                    trainer.optimization.optimizer.step()

        return record

    def evaluation(self, counts: Sequence[RowCounts | None], *, in_groups: bool, mfg: bool | None = None) -> StepAccount:
        """Of an evaluation of the whole graph, or ``in_groups`` of one of several views.

        Args:
            mfg: in one piece, of the rows that reach some; as configured if not given.
        """

        def prepare(trainer: Trainer, trace: Trace) -> Callable[[], None]:
            trainer.model.eval()
            recurring = trainer.training.recurring and not self._config.mfg  # else it is no view that is trained on
            view = dataclasses.replace(trainer.training, inputs=None, recurring=recurring)

            def record() -> None:
                with torch.no_grad():
                    trainer.forward.logits(view)

            return record

        return self._of(counts, "evaluation", prepare, micro_batches=in_groups, keep_layers="all", constants=False, mfg=mfg)

    def smoothing(self) -> StepAccount:
        """Of Correct & Smooth on all rows, with the scores that it starts from."""

        def prepare(trainer: Trainer, trace: Trace) -> Callable[[], None]:
            targets, spread = trainer.builder.whole().targets, partial(propagate, trainer.engine, trainer.graph.neighbourhood())
            rows = len(targets.labels)

            def record() -> None:
                trace.phase = SMOOTHING
                scores = torch.zeros(rows, self._num_classes, dtype=wide(trainer.engine.dtype))
                correct_and_smooth(self._config.smooth, spread, trainer.engine.group, scores, targets)

            return record

        def halo(trainer: Trainer, _: Any) -> HaloBytes:  # of one sum at a time
            width = Sum().row_bytes((self._num_classes,), wide(trainer.engine.dtype))
            held = trainer.engine.mode.halo_bytes(Sum(), width)
            layer = LayerHalo(dataclasses.replace(held, kept=0, backward=0), travels=width)
            return HaloBytes((layer,), self._message_rows, self._config.comm.prefetch_depth)

        return self._of(
            [None] * self._depth,
            SMOOTHING,
            prepare,
            micro_batches=False,
            keep_layers="all",
            constants=False,
            mfg=False,
            halo_of=halo,
        )

    def _of(
        self,
        counts: Sequence[RowCounts | None],
        what: str,
        prepare: Prepare,
        *,
        micro_batches: bool,
        keep_layers: KeepLayers,
        constants: bool,
        mfg: bool | None = None,
        halo_of: Callable[[Trainer, Any], HaloBytes] | None = None,
    ) -> StepAccount:
        key = (
            what,
            micro_batches,
            keep_layers,
            constants,
            mfg,
            tuple(
                layer.uses_edges and layer.transforms_first(row_counts)
                for layer, row_counts in zip(self._layers, counts, strict=False)
            ),
        )
        if key in self._made:
            return self._made[key]
        trace = Trace()
        self._warm_up(what, prepare)
        config = dataclasses.replace(
            self._alone,
            mfg=self._config.mfg if mfg is None else mfg,
            engine=dataclasses.replace(self._config.engine, keep_layers=keep_layers),
        )
        trainer = self._make_trainer(
            config,
            self._part,
            self._num_classes,
            Group.single(),
            None,
            lambda *, enabled: TracedPool(trace, enabled=enabled),
        )
        view, rows = trainer.training, target_rows(self._part)
        if micro_batches:
            brought = trainer.builder.first_constants([rows]) if constants else None
            view = trainer.builder.micro_batch(rows, brought, finds_others=not self._config.draws_flows)
        recorded = view.flow.plans
        plans = tuple(dataclasses.replace(plan, counts=row_counts) for plan, row_counts in zip(recorded, counts, strict=True))
        trainer.model.prepare(trainer.engine, plans)
        view = dataclasses.replace(view, flow=dataclasses.replace(view.flow, plans=plans))
        trainer.loop.steps = OneStep([view])
        sizes = sizes_of_plans(plans, len(trainer.rows), len(rows))
        record = prepare(trainer, trace)
        with trace, _phases_of(trainer, trace):
            record()
            trace.note_freed()
        constant = plans[0].constant
        row_bytes = 0 if constant is None else constant.shape[1] * constant.element_size()
        halo = (halo_of or self._halo_bytes)(trainer, counts)
        batches = _batches_of(trainer.model, plans)
        libraries = 0
        if not self._libraries_are_there:
            libraries = max((reducer.library_bytes for *_, reducer in _reducers_of(trainer.model, plans)), default=0)
        kernels = self._kernel_bytes(trainer, recorded, halo)
        events = trace.events
        for node_batches in batches:
            events = [node_batches.joined(event) for event in events]
        self._made[key] = StepAccount(
            tuple(events), sizes, row_bytes, halo, micro_batches, batches, libraries=libraries, kernels=kernels
        )
        return self._made[key]

    def _warm_up(self, what: str, prepare: Prepare) -> None:
        """Once in a process do what is recorded then: what compiles a kernel may hold its arguments for a while."""
        config = self._config
        key = what, type(config.model), config.model.operations, config.mode.choice, config.kernel.choice, config.precision
        if key in _warm:
            return
        _warm.add(key)
        prepare(self._make_trainer(self._alone, self._part, self._num_classes, Group.single(), None), Trace())()

    def _kernel_bytes(self, trainer: Trainer, plans: Sequence[LayerPlan], halo: HaloBytes) -> tuple[KernelBytes, ...]:
        """What kernels hold that is no tensor's, of the layers that ``halo`` has."""
        engine, dtype, kernels = trainer.engine, ROW_DTYPES[self._config.precision], []
        for number, plan, reducer in _reducers_of(trainer.model, plans[: len(halo.layers)]):
            first = next(k for k, other in enumerate(plans) if other is plan)
            kernel, row_bytes = engine.kernel(reducer.operation), halo.layers[number].travels
            autograd = engine.mode.plain_autograd
            kernels.append(KernelBytes(number, first, kernel, reducer.operation, row_bytes, dtype, autograd))
        return tuple(kernels)

    def _halo_bytes(self, trainer: Trainer, counts: Sequence[RowCounts | None]) -> HaloBytes:
        engine, depth, typed = trainer.engine, self._config.comm.prefetch_depth, trainer.graph.part.schema.typed
        mode, dtype, refetches = engine.mode, ROW_DTYPES[self._config.precision], False
        shares = shares_of(self._config.comm.aggregate or "least", trainer.model.partial_costs(engine, counts))
        layers = [layer for layer in trainer.model.modules() if isinstance(layer, GraphLayer)]
        halos = [LayerHalo()] * len(trainer.training.flow.plans)
        for number, plan in enumerate(trainer.training.flow.plans[: len(layers)]):
            layer, share = layers[number], shares[number]
            if not layer.uses_edges:
                continue
            reducer, widths = layer.reducer_on(plan), layer.exchanged_widths(counts[number])
            row_bytes = reducer.row_bytes(widths, dtype)
            halo, own = mode.halo_bytes(reducer, row_bytes, typed=typed), Held()
            if self._config.world > 1 and not typed:
                own = mode.own_bytes(reducer, row_bytes)
            if not layer.exchanged_needs_grad:
                halo, own = dataclasses.replace(halo, backward=0), dataclasses.replace(own, backward=0)
            results = None
            if share is not None:
                needs_grad = layer.exchanged_needs_grad
                passes = mode.partial_bytes(reducer, widths, dtype, engine.exchange.wire, exchanged_needs_grad=needs_grad)
                request, answer = (max(sizes) for sizes in zip(*passes, strict=True))
                results = ResultBytes(request, answer, share.widest, typed)
            refetches |= mode.fetches(reducer) > 1
            halos[number] = LayerHalo(halo, own, row_bytes, results)
        return HaloBytes(tuple(halos), self._message_rows, depth, 1 + refetches)
