"""Views: what a step or an evaluation computes, as a message flow and the targets of its rows; and the model on them.

Building a view communicates, so all workers build the same views in the same order.

Letters: N own rows, D width of the first layer's input, C outputs, L layers, K micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.engine.aggregate import Engine
from sargnn.engine.rebuild import rebuilt_by
from sargnn.models.base import LayerInput, Model
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.mfg import MessageFlow
from sargnn.plan.sizes import Groups, Sizes, sizes_of_layers
from sargnn.tasks.base import Targets, Task

if TYPE_CHECKING:
    from sargnn.plan.drawn import LeftOut, OutDegrees, Sample


@dataclass(frozen=True)
class View:
    """A message flow, and what its last layer's rows should be.

    Attributes:
        targets: of the last layer's output rows.
        recurring: whether it comes again every epoch, so that aggregates of constant rows are worth keeping.
        inputs: [rows, D], the first layer's rows where they are constant and were gathered once; else None.
    """

    flow: MessageFlow
    targets: Targets
    recurring: bool
    inputs: Tensor | None = None


@dataclass(frozen=True)
class Constants:
    """Aggregates of constant rows, [at most N, F], and where an own row's lies among them, int64 [N]; -1: it has none."""

    places: Tensor
    table: Tensor

    def of(self, rows: Tensor) -> Tensor:
        """[rows, F], of own rows (int64)."""
        return self.table.index_select(0, self.places[rows])


def layers_with_edges(model: Model, columns: int, *, holds_constants: bool) -> list[bool]:
    """Per layer, whether it aggregates; not the first one where its aggregates are there and there are no labels beside."""
    first, *others = model.uses_edges
    return [first and (columns > 0 or not holds_constants), *others]


class ViewBuilder:
    """Builds a worker's views.

    Args:
        rows: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        task: gives the targets of views, and the columns beside the rows.
        whole_recurs: the view of all rows comes again every epoch.
    """

    def __init__(
        self, model: Model, engine: Engine, graph: WorkerGraph, rows: Tensor, task: Task, *, whole_recurs: bool
    ) -> None:
        self.model, self.engine, self.graph, self.rows, self.task = model, engine, graph, rows, task
        self._whole_recurs = whole_recurs
        self.whole_view: View | None = None

    def whole(self) -> View:
        """Every row of every layer, the last layer's of the labelled type; made the first time that all workers call it."""
        if self.whole_view is None:
            flow = self.graph.whole(len(self.model.uses_edges), self.model.uses_edges)
            self.whole_view = self._view(flow, self._whole_recurs)
        return self.whole_view

    def ready_for_gradients(self, flow: MessageFlow) -> None:
        """Of a flow that a training step goes back through."""
        for plan, goes_back in zip(flow.plans, self.model.edges_in_backward, strict=True):
            if goes_back:
                plan.ready_for_gradients()

    def reaching(self, wanted: np.ndarray, *, recurring: bool) -> View:
        """Only rows that reach a wanted one (int64); all workers must call it."""
        flow = self.graph.flow(self._marked(wanted), self.model.uses_edges)
        inputs, reads = None, flow.input_rows
        # On a disk most of the rows are there already, and are read in their order.
        gathers_each_time = self.engine.pool.spills and reads is not None and 2 * len(reads) > len(self.rows)
        if recurring and self.model.inputs.constant and not gathers_each_time:
            inputs = self.engine.pool.lay(self.inputs_of(flow))
        return self._view(flow, recurring, inputs)

    def inputs_of(self, flow: MessageFlow) -> Tensor:
        """The rows that a flow's first layer reads, in a table of the pool's unless they are learned or all."""
        rows, chosen = self.model.inputs(self.rows), flow.input_rows
        if rows.requires_grad or chosen is None:
            return flow.own_inputs(rows)

        def gather() -> Tensor:
            return torch.index_select(rows, 0, chosen, out=self.engine.pool.empty(len(chosen), rows.shape[1], rows))

        # Where tables lie on disk the rows do, too: they are read again there, and not written.
        return rebuilt_by(gather(), gather) if self.engine.pool.spills else gather()

    def _view(self, flow: MessageFlow, recurring: bool, inputs: Tensor | None = None) -> View:
        self._prepare(flow, recurring=recurring)
        return View(flow, self.task.targets(flow.output_rows), recurring, inputs)

    def _prepare(self, flow: MessageFlow, *, recurring: bool) -> None:
        self.engine.keeps_constants = recurring
        self.model.prepare(self.engine, flow.plans)
        if self.engine.pool.spills and self.engine.column_groups is None:
            for plan in flow.plans:
                self.engine.most_rows(plan)  # now, while nobody has rows that would go to disk to wait for an answer

    def micro_batch(self, rows: np.ndarray, constants: Constants | None, *, finds_others: bool = True) -> View:
        """What reaches some own rows, whose losses are shares of the whole step's. All workers must call it.

        Args:
            rows: int64.
            finds_others: compute what else the model keeps of constant rows.
            constants: of the first layer, which needs no edges for rows whose aggregates are there; None: there are none.
        """
        flow = self.graph.flow_of(self.graph.reach(self._marked(rows), self.uses_edges(constants is not None)))
        flow = self._with_constants(flow, constants)
        self._prepare(flow, recurring=False)
        if finds_others and self.model.keeps_constant_outputs and self.engine.caches_constants:
            x, plans = self._first_input(flow.own_inputs(self.model.inputs(self.rows))), flow.plans
            constant = self.engine.find_constant(lambda: self.model(self.engine, plans, x))
            flow = dataclasses.replace(flow, plans=(plans[0].with_constant(constant), *plans[1:]))
        targets = self.task.targets(flow.output_rows, self.task.targets(None).global_counts)
        self.ready_for_gradients(flow)
        self.graph.release(mapped_only=True)
        return View(flow, targets, recurring=False)

    def _with_constants(self, flow: MessageFlow, constants: Constants | None) -> MessageFlow:
        if constants is None:
            return flow
        first, *others = flow.plans
        first = first.with_constant(constants.of(flow.rows_of(0, len(self.rows))))
        return dataclasses.replace(flow, plans=(first, *others))

    def drawn(
        self,
        rows: np.ndarray,
        total: int,
        sample: Sample | None,
        constants: Constants | None = None,
        outward: Sequence[OutDegrees] | None = None,
        *,
        recurring: bool = False,
        left_out: LeftOut | None = None,
        trains: bool = True,
    ) -> View:
        """A step, or a part of one, on a message flow that is drawn. All workers must call it.

        Args:
            rows: int64 ascending, own rows whose outputs are wanted.
            total: known labels of the step's training rows, over all workers.
            sample: which edges each layer keeps; None: all.
            constants: as for ``micro_batch``.
            outward: degrees of the step that these rows are a part of (``outward_of``); None: of these rows' own flow.
            recurring: the same view makes all steps.
            left_out: as of ``FlowDrawer.layers``.
            trains: whether gradients go back through it.
        """
        drawer, model = self.graph.drawer, self.model
        counted = model.reads_out_degrees and outward is None
        flow = drawer.flow(
            drawer.layers(rows, self.uses_edges(constants is not None), sample, outward=counted, left_out=left_out), outward
        )
        flow = self.graph.counting(flow)
        flow = self._with_constants(flow, constants)
        self._prepare(flow, recurring=recurring)
        if trains:
            self.ready_for_gradients(flow)
        return View(flow, self.task.targets(flow.output_rows, {"train": total}), recurring)

    def drawn_evaluation(self, rows: np.ndarray, sample: Sample) -> View:
        """What an evaluation reads where that is a sample. All workers must call it. ``rows``: int64 ascending."""
        view = self.drawn(rows, 0, sample, trains=False)
        return dataclasses.replace(view, targets=self.task.targets(view.flow.output_rows))

    def outward_of(self, rows: np.ndarray, sample: Sample | None) -> list[OutDegrees] | None:
        """Per layer how many edges of a whole step's flow start from each own row; None where the model does not ask.

        All workers must call it.
        """
        if not self.model.reads_out_degrees or sample is None or max(sample.fanouts) < 0:
            return None
        return self.graph.drawer.outward(rows, self.model.uses_edges, sample)

    def drawn_sizes(
        self, rows: np.ndarray, sample: Sample | None, *, holds_constants: bool
    ) -> tuple[Sizes, tuple[RowCounts, ...]]:
        """What a drawn view would hold; all workers must call it."""
        drawer = self.graph.drawer
        layers = drawer.layers(rows, self.uses_edges(holds_constants), sample, outward=False)
        sizes = sizes_of_layers(layers, self.graph.part, len(rows), wide(self.engine.dtype).itemsize)
        return sizes, drawer.counts(layers)

    def uses_edges(self, holds_constants: bool) -> list[bool]:
        return layers_with_edges(self.model, self.task.input_columns, holds_constants=holds_constants)

    def groups_of(self, rows: np.ndarray, groups: np.ndarray, count: int, *, holds_constants: bool) -> Groups:
        """What groups of own rows (int64) reach, before their flows are made; all workers must call it.

        ``groups``: int32, each row's. ``holds_constants``: whether the first layer's aggregates will be there.
        """
        sizes, counts, part = [], [], self.graph.part
        for number in range(count):
            own = rows[groups == number]
            reach = self.graph.reach(self._marked(own), self.uses_edges(holds_constants))
            sizes.append(sizes_of_layers(reach.layers, part, len(own), wide(self.engine.dtype).itemsize))
            counts.append(reach.counts)
            self.graph.release(mapped_only=True)
        return Groups(groups, tuple(sizes), tuple(counts))

    def _marked(self, rows: np.ndarray) -> np.ndarray:
        marked = np.zeros(len(self.rows), bool)
        marked[rows] = True
        return marked

    def first_constants(self, batches: Sequence[np.ndarray]) -> Constants | None:
        """The first layer's aggregates of constant rows that micro-batches compute there; None: batches can share none.

        Where the plan of all rows is there, it computes those of all. Else each batch computes those of its rows (int64) that
        none before has, so that no more is needed than for one batch. All workers must call it.
        """
        model, engine = self.model, self.engine
        if not model.shares_constants(engine):
            return None
        plan = None
        if self.whole_view is not None and self.graph.copies is None:
            # The same answer on all workers, whatever rows they have. Copies are computed or not worker by worker, and the last
            # layer of a typed graph has the labelled rows.
            first, *others = self.whole_view.flow.plans
            plan = first if others or len(first.schema.node_types) == 1 else None
        if plan is not None:
            constant = model.first_constant(engine, plan, self._first_input(model.inputs(self.rows)))
            places = torch.arange(len(self.rows), device=engine.device)
            return None if constant is None else Constants(places, constant)
        places, number = torch.full((len(self.rows),), -1, dtype=torch.int64), 0
        table: Tensor | None = None
        for rows in batches:
            reached = np.concatenate(self.graph.reach(self._marked(rows), self.uses_edges(True)).layers[0].outputs)
            flow = self.graph.flow_of(self.graph.reach(self._marked(reached) & (places.numpy() < 0), [True]), shared=False)
            x = self._first_input(flow.own_inputs(model.inputs(self.rows)))
            constant = model.first_constant(engine, flow.plans[0], x)
            if constant is None:
                return None
            if table is None:  # memory that nothing is written to is not resident
                table = constant.new_empty(len(places), constant.shape[1])
            table[number : number + len(constant)] = constant
            places[flow.rows_of(0, len(places)).cpu()] = torch.arange(number, number + len(constant))
            number += len(constant)
            del flow, x, constant
            self.graph.release(mapped_only=True)
        return None if table is None else Constants(places.to(engine.device), table)

    def _first_input(self, rows: Tensor) -> LayerInput:
        """With labels of no row."""
        return LayerInput(rows, rows.new_zeros(len(rows), self.task.input_columns) if self.task.input_columns else None)


class Forward:
    """Runs the model on what a builder has; predictions that are fed back are made on its view of all rows. All workers call
    its methods together. ``on_output`` gets every view with the model's output.
    """

    def __init__(self, builder: ViewBuilder) -> None:
        self.model, self.engine, self._builder = builder.model, builder.engine, builder
        self.on_output: Callable[[View, Tensor], None] | None = None

    def __call__(self, view: View, columns: Tensor | None, *, hidden: bool = False) -> Tensor:
        """The last layer's output [M, C]; with ``hidden`` its input [M, F]. ``columns`` stand beside the features."""
        flow = view.flow
        self.engine.keeps_constants = view.recurring
        x = LayerInput(
            view.inputs if view.inputs is not None else self._builder.inputs_of(flow),
            None if columns is None else flow.own_inputs(columns),
            queries=view.targets.queries,
        )
        with self.engine.rounds_products():
            out: Tensor = self.model(self.engine, flow.plans, x, hidden=hidden)
        if self.on_output is not None:
            self.on_output(view, out)
        return out

    def logits(self, view: View, step: int | None = None, *, hidden: bool = False) -> Tensor:
        """The same with the columns of a training step or an evaluation (None); fp32 where rows are bf16."""
        out = self(view, self.columns(step), hidden=hidden)
        return out.to(wide(out.dtype))

    def columns(self, step: int | None) -> Tensor | None:
        """What stands beside the features, [N, columns], of a training step or an evaluation (None)."""
        training, copies = self.model.training, self._builder.graph.copies

        def predict(columns: Tensor) -> tuple[Tensor, Tensor | None]:
            whole = self._builder.whole()
            self.model.eval()
            with torch.no_grad():
                logits = self(whole, columns)
            return logits.to(wide(logits.dtype)), whole.flow.output_rows

        columns = self._builder.task.columns(step, predict, lambda rows: None if copies is None else copies.fetch(rows))
        self.model.train(training)
        return columns
