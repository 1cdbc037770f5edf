"""Recording what a run's steps and evaluations allocate, on a small made-up graph (``made_up.py``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, MemoryConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.engine.grouped import Grouped
from sargnn.engine.modes.base import Held
from sargnn.engine.propagate import propagate
from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.engine.reducers.sum import Sum
from sargnn.engine.segments import KeepLayers
from sargnn.memory.account_step import (
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
from sargnn.memory.account_trace import Trace, TracedPool
from sargnn.memory.made_up import made_up_part, with_links
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import GraphLayer
from sargnn.partition.pairs import PartPairs
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.plan.sizes import sizes_of_plans
from sargnn.tasks.base import Targets, Task
from sargnn.tasks.correct_smooth import correct_and_smooth
from sargnn.training.build import layer_shares, make_trainer
from sargnn.training.fit import draws_views
from sargnn.training.steps import OneStep
from sargnn.training.trainer import Trainer
from sargnn.training.views import View

SMOOTHING = "smoothing"
Prepare = Callable[[Trainer, Trace], Callable[[], None]]
"""Makes ready what is recorded, with a trainer of the made-up graph, and gives what does it."""
_warm: set[tuple[object, ...]] = set()


class _AskedAnew(OneStep):
    """One view, which asks the same queries each time, in tables that are made anew as those of a run are."""

    def __init__(self, view: View, task: Task) -> None:
        from sargnn.tasks.queries import QueryTask

        super().__init__([view])
        assert isinstance(task, QueryTask)
        self._task = task

    def views(self, step: int) -> Sequence[View]:
        return [self.last_view]

    @property
    def last_view(self) -> View:
        every = np.arange(len(self._task.known_labels()))
        return dataclasses.replace(self.all[0], targets=self._task.training_targets(every, 0, 1))


@dataclass(frozen=True)
class _Aggregation:
    """One of a user's module's: on which layer's plan, None: on that of a relation; the widths of what travels."""

    plan: int | None
    reducer: Reducer
    widths: tuple[int, ...]
    needs_grad: bool


@contextmanager
def _phases_of(trainer: Trainer, trace: Trace, plans: Sequence[LayerPlan]) -> Iterator[list[_Aggregation]]:
    """Tell the record when a layer begins, when its output's gradient comes, when it aggregates and when rows are exchanged. A
    user's module does not say where its layers end: each of its aggregations is one. Gives these.
    """
    model, engine, hooks = trainer.model, trainer.engine, []
    aggregate, layers = engine.aggregate_in_groups, _layers_of(model)
    aggregations: list[_Aggregation] = []
    numbers = count(1)

    def aggregating(plan: LayerPlan, reducer: Reducer, exchanged: Tensors, *arguments: Any, **named: Any) -> Any:
        is_layer = not layers and trace.phase not in backward_phases
        if is_layer:
            number = next(numbers)
            trace.phase = LAYER_PHASES[0].format(number)
            if number > len(aggregations):
                needs_grad = any(tensor.requires_grad and tensor.shape[1] for tensor in exchanged)
                widths = tuple(tensor.shape[1] for tensor in exchanged)
                aggregations.append(_Aggregation(_number_of(plan, plans), reducer, widths, needs_grad))
        trace.aggregates = True
        try:
            outs = aggregate(plan, reducer, exchanged, *arguments, **named)
        finally:
            trace.aggregates = False
        if is_layer:
            follow_back(number, outs[0])
        return outs

    backward_phases = set[str]()

    def follow_back(number: int, out: Any) -> None:
        phase = LAYER_PHASES[1].format(number)
        backward_phases.add(phase)

        def backward(*_: Any) -> None:
            trace.phase, trace.aggregates = phase, True

        out = out.stand_in if isinstance(out, Grouped) else out
        if isinstance(out, torch.Tensor) and out.requires_grad:
            out.register_hook(backward)

    def follow(number: int, layer: GraphLayer) -> None:
        def begin(*_: Any) -> None:
            trace.phase, trace.aggregates = LAYER_PHASES[0].format(number), False

        hooks.append(layer.register_forward_pre_hook(begin))
        hooks.append(layer.register_forward_hook(lambda _, __, out: follow_back(number, out)))

    def begin_again(*_: Any) -> None:
        nonlocal numbers
        numbers = count(1)

    hooks.append(model.register_forward_pre_hook(begin_again))
    for number, layer in enumerate(layers, 1):
        follow(number, layer)
    under_way = engine.exchange.under_way

    @contextmanager
    def exchanging() -> Iterator[None]:
        with trace.exchange(), under_way():
            yield

    engine.aggregate_in_groups = aggregating  # type: ignore[method-assign]
    engine.exchange.under_way = exchanging  # type: ignore[method-assign]
    try:
        yield aggregations
    finally:
        del engine.aggregate_in_groups, engine.exchange.under_way
        for hook in hooks:
            hook.remove()


def _number_of(plan: LayerPlan, plans: Sequence[LayerPlan]) -> int | None:
    """Of the layer whose plan it is, or whose relations it joins; None: it is that of one relation."""
    for number, whole in enumerate(plans):
        joined = None if whole.relations is None else vars(whole.relations).get("joined")
        if plan is whole or (joined is not None and plan is joined[0]):
            return number
    return None


def _layers_of(model: Model) -> list[GraphLayer]:
    return [module for module in model.modules() if isinstance(module, GraphLayer)]


def _reducers_of(model: Model, plans: Sequence[LayerPlan]) -> Iterator[tuple[int, LayerPlan, Reducer]]:
    """Of layers that aggregate: the number, from 0, the plan and the reducer."""
    for number, (layer, plan) in enumerate(zip(_layers_of(model), plans, strict=False)):
        if layer.uses_edges:
            yield number, plan, layer.reducer_on(plan)


def _batches_of(model: Model, plans: Sequence[LayerPlan]) -> tuple[NodeBatches, ...]:
    """Of layers whose reducer takes nodes of one degree together, the largest such batch."""
    batches = []
    for number, plan, reducer in _reducers_of(model, plans):
        if (most := reducer.edges_at_once) is not None:
            degrees, nodes = plan.in_degrees.unique(return_counts=True)
            largest = int((degrees * nodes).argmax())
            degree = int(degrees[largest])
            batches.append(NodeBatches(number, min(int(nodes[largest]), max(1, most // max(degree, 1))), degree, most))
    return tuple(batches)


def _without_pairs(task: Task, view: View) -> Targets:
    """Of a view of a step without any pair."""
    from sargnn.tasks.pairs import PairTask

    assert isinstance(task, PairTask)
    return task.targets_of(task.batch(np.zeros(0, np.int64), 0), view.flow.output_rows, 1)


@dataclass(frozen=True)
class _Recorded:
    """What is recorded, of a micro-batch or of the view that the configuration has; the rest as of ``Accounts``."""

    what: str
    mfg: bool
    micro_batches: bool = False
    keep_layers: KeepLayers = "all"
    constants: bool = False
    queries: int = 0


class Accounts:
    """The accounts of one run's steps. ``message_rows``: of the real graph's messages."""

    def __init__(self, config: RunConfig, shape: GraphShape, model: Model, message_rows: int) -> None:
        self._config, self._num_classes, self._message_rows = config, shape.num_classes, message_rows
        self._alone = dataclasses.replace(
            config,
            world=1,
            batches=BatchesConfig(),
            sample=SampleConfig(),
            eval="full",
            memory_budget=MemoryConfig(),
            profile=False,
        )
        self._layers, self._depth = _layers_of(model), len(model.uses_edges)
        self._part = made_up_part(shape, self._depth, is_asked=config.asks_queries)
        if config.predicts_pairs:  # of pairs ``step_bytes`` of their tasks know
            self._part = dataclasses.replace(self._part, pairs=PartPairs.none(len(self._part.node_ids)))
            # There is one class, and nothing is measured.
            optim = dataclasses.replace(config.optim, class_weights=None, loss=None)
            self._alone = dataclasses.replace(self._alone, metric=None, optim=optim)
        self._made: dict[tuple[_Recorded, tuple[bool, ...]], StepAccount] = {}
        self._libraries_are_there = False

    def load_libraries(self) -> None:
        """Train a made-up step, so that libraries are loaded before memory is measured, and no account has them."""
        self._warm_up("step", self._training_step)
        self._libraries_are_there = True

    def step(
        self,
        counts: Sequence[RowCounts | None],
        *,
        micro_batches: bool,
        keep_layers: KeepLayers,
        constants: bool = True,
        queries: int = 0,
    ) -> StepAccount:
        """Of a training step.

        Args:
            counts: of the real view's layers, by which each chooses what it does first.
            micro_batches: of a micro-batch; else of the view that the configuration has.
            constants: whether micro-batches have what is aggregated of constant rows.
            queries: that the view asks; 0: none.
        """
        recorded = _Recorded("step", self._config.mfg, micro_batches, keep_layers, constants, queries)
        return self._of(recorded, counts, self._training_step)

    @staticmethod
    def _training_step(trainer: Trainer, trace: Trace) -> Callable[[], None]:
        def record() -> None:
            for epoch in range(2):
                trainer.engine.epoch, trace.phase = epoch, INPUTS
                trainer.model.train()
                trainer.model.zero_grad(set_to_none=True)
                trainer.loop.gradients()
                trace.phase = OPTIMIZER
                trainer.optimization.step(trainer.engine.group)

        return record

    def evaluation(
        self, counts: Sequence[RowCounts | None], *, in_groups: bool, mfg: bool | None = None, queries: int = 0
    ) -> StepAccount:
        """Of an evaluation of the whole graph, or ``in_groups`` of one of several views.

        Args:
            mfg: whether only rows that reach some are computed, in one piece; None: as configured.
            queries: as of ``step``.
        """

        def prepare(trainer: Trainer, trace: Trace) -> Callable[[], None]:
            trainer.model.eval()

            def record() -> None:
                view = trainer.training
                recurring = view.recurring and not self._config.mfg  # else it is no view that is trained on
                view = dataclasses.replace(view, inputs=None, recurring=recurring)
                with torch.no_grad():
                    trainer.task.kept_of(trainer.forward(view, trainer.forward.columns(None)), view.targets)

            return record

        recorded = _Recorded("evaluation", self._config.mfg if mfg is None else mfg, in_groups, queries=queries)
        return self._of(recorded, counts, prepare)

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

        return self._of(_Recorded(SMOOTHING, mfg=False), [None] * self._depth, prepare)

    def _of(self, recorded: _Recorded, counts: Sequence[RowCounts | None], prepare: Prepare) -> StepAccount:
        layers = zip(self._layers, counts, strict=False)
        key = recorded, tuple(layer.uses_edges and layer.transforms_first(row_counts) for layer, row_counts in layers)
        if key not in self._made:
            self._warm_up(recorded.what, prepare)
            self._made[key] = self._record(recorded, counts, prepare)
        return self._made[key]

    def _record(self, recorded: _Recorded, counts: Sequence[RowCounts | None], prepare: Prepare) -> StepAccount:
        trace = Trace()
        engine = dataclasses.replace(self._config.engine, keep_layers=recorded.keep_layers)
        trainer = self._trainer(
            dataclasses.replace(self._alone, mfg=recorded.mfg, engine=engine),
            recorded.queries,
            make_pool=lambda *, enabled: TracedPool(trace, enabled=enabled),
        )
        view, rows = trainer.training, trainer.task.rows("train")
        if recorded.micro_batches and not recorded.queries:
            brought = trainer.builder.first_constants([rows]) if recorded.constants else None
            view = trainer.builder.micro_batch(rows, brought, finds_others=not draws_views(self._config))
            if self._config.predicts_pairs:
                view = dataclasses.replace(view, targets=_without_pairs(trainer.task, view))
        made = view.flow.plans
        plans = tuple(dataclasses.replace(plan, counts=row_counts) for plan, row_counts in zip(made, counts, strict=True))
        trainer.model.prepare(trainer.engine, plans)
        view = dataclasses.replace(view, flow=dataclasses.replace(view.flow, plans=plans))
        trainer.loop.steps = _AskedAnew(view, trainer.task) if recorded.queries else OneStep([view])
        num_targets = 0 if self._config.predicts_pairs else len(rows)  # no table has a row for each pair
        sizes = sizes_of_plans(plans, len(trainer.rows), num_targets)
        record = prepare(trainer, trace)
        with trace, _phases_of(trainer, trace, plans) as aggregations:
            record()
            trace.note_freed()
        constant = plans[0].constant
        row_bytes = 0 if constant is None else constant.shape[1] * constant.element_size()
        if recorded.what == SMOOTHING:  # one sum at a time
            width = Sum().row_bytes((self._num_classes,), wide(trainer.engine.dtype))
            held = Held(forward=trainer.engine.mode.held_rows(Sum(), width).halo.forward)
            halo = HaloBytes((LayerHalo(held, travels=width),), self._message_rows, self._config.comm.prefetch_depth)
        else:
            halo = self._halo_bytes(trainer, counts, aggregations)
        libraries = 0
        if not self._libraries_are_there:
            libraries = max((reducer.library_bytes for *_, reducer in _reducers_of(trainer.model, plans)), default=0)
        batches, events = _batches_of(trainer.model, plans), trace.events
        for node_batches in batches:
            events = [node_batches.joined(event) for event in events]
        kernels = []  # what they hold that is no tensor's
        for number, plan, reducer in _reducers_of(trainer.model, made[: len(halo.layers)]):
            first = next(k for k, other in enumerate(made) if other is plan)
            kernel, travels = trainer.engine.kernel(reducer.operation), halo.layers[number].travels
            dtype, autograd = ROW_DTYPES[self._config.precision], trainer.engine.mode.plain_autograd
            kernels.append(KernelBytes(number, first, kernel, reducer.operation, travels, dtype, autograd))
        return StepAccount(
            tuple(events),
            sizes,
            row_bytes,
            halo,
            recorded.micro_batches,
            batches,
            libraries,
            tuple(kernels),
            recorded.queries,
        )

    def _trainer(self, config: RunConfig, queries: int = 0, **more: Any) -> Trainer:
        """``queries``: that a step asks, where it asks some; 0: as few as there can be."""
        part = self._part
        if config.asks_queries:
            from sargnn.tasks.queries import QueryCounts

            of_pair = QueryCounts(config.links, 0).of_pair
            asked = max(queries, of_pair)
            part = with_links(part, asked // of_pair)
            config = dataclasses.replace(config, links=dataclasses.replace(config.links, queries=asked))
        return make_trainer(config, part, self._num_classes, Group.single(), **more)

    def _warm_up(self, what: str, prepare: Prepare) -> None:
        """Once in a process, since what compiles a kernel may hold its arguments for a while."""
        config = self._config
        key = what, type(config.model), config.model.operations, config.mode.choice, config.kernel.choice, config.precision
        if key in _warm:
            return
        _warm.add(key)
        prepare(self._trainer(self._alone), Trace())()

    def _halo_bytes(
        self, trainer: Trainer, counts: Sequence[RowCounts | None], aggregations: Sequence[_Aggregation]
    ) -> HaloBytes:
        engine, typed = trainer.engine, trainer.graph.part.schema.typed
        mode, dtype, refetches = engine.mode, ROW_DTYPES[self._config.precision], False
        shares = layer_shares(self._config, trainer.model.partial_costs(engine, counts))
        plans = trainer.training.flow.plans
        of_layers: Sequence[_Aggregation | None] = [
            _Aggregation(number, layer.reducer_on(plan), tuple(layer.exchanged_widths(of_layer)), layer.exchanged_needs_grad)
            if layer.uses_edges
            else None
            for number, (layer, plan, of_layer) in enumerate(zip(_layers_of(trainer.model), plans, counts, strict=False))
        ]
        halos = []
        for call in of_layers or aggregations:
            if call is None or call.plan is None:  # which rows relations read is not known here
                halos.append(LayerHalo())
                continue
            row_bytes = call.reducer.row_bytes(call.widths, dtype)
            held = mode.held_rows(call.reducer, row_bytes, typed=typed and bool(of_layers))
            own = held.own if self._config.world > 1 else Held()
            halo = held.halo
            if not call.needs_grad:
                halo, own = dataclasses.replace(halo, backward=0), dataclasses.replace(own, backward=0)
            results = None
            if (share := shares[call.plan]) is not None:
                wire = engine.exchange.wire
                costs = mode.costs(call.reducer, call.widths, dtype, wire, exchanged_needs_grad=call.needs_grad)
                assert costs is not None
                moved = max(map(sum, zip(costs.request, costs.answer, strict=True)))
                results = ResultBytes(moved, share.widest, typed)
            refetches |= mode.fetches(call.reducer) > 1
            halos.append(LayerHalo(halo, own, row_bytes, results, call.plan))
        return HaloBytes(tuple(halos), self._message_rows, self._config.comm.prefetch_depth, 1 + refetches)
