"""Views: what a step or an evaluation computes, as a message flow and the targets of its rows.

Building a view communicates, so all workers build the same views in the same order.

Letters: N own rows, D width of the first layer's input, C outputs, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.models.base import Model
from sargnn.shards.graph import WorkerGraph
from sargnn.shards.mfg import MessageFlow
from sargnn.training.loss import Targets
from sargnn.training.tasks import NodeTask


@dataclass(frozen=True)
class View:
    """A message flow, and what its last layer's rows should be.

    Attributes:
        flow: which rows every layer computes.
        targets: of the last layer's output rows.
        recurring: whether it comes again every epoch, so that aggregates of constant rows are worth keeping.
        inputs: [rows, D], the first layer's rows where they are constant and were gathered once; else None.
    """

    flow: MessageFlow
    targets: Targets
    recurring: bool
    inputs: Tensor | None = None


class ViewBuilder:
    """Builds a worker's views.

    Args:
        rows: [N, D], what the model's inputs loaded. labels: [N] or [N, C], of ``task``. split: uint8 [N].
    """

    def __init__(
        self, model: Model, engine: Engine, graph: WorkerGraph, rows: Tensor, labels: Tensor, split: Tensor, task: NodeTask
    ) -> None:  # fmt: skip
        self._model, self._engine, self._graph, self._task = model, engine, graph, task
        self._rows, self._labels, self._split = rows, labels, split

    def whole(self, *, recurring: bool) -> View:
        """Every row of every layer, the last layer's of the labelled type; all workers must call it."""
        return self._view(self._graph.whole(len(self._model.uses_edges)), recurring)

    def reaching(self, wanted: Tensor, *, recurring: bool) -> View:
        """Only rows that reach a wanted one (bool [N]); all workers must call it."""
        flow = self._graph.flow(wanted.numpy(), self._model.uses_edges)
        inputs = flow.own_inputs(self._rows) if recurring and self._model.inputs.constant else None
        return self._view(flow, recurring, inputs)

    def _view(self, flow: MessageFlow, recurring: bool, inputs: Tensor | None = None) -> View:
        self._model.prepare(self._engine, flow.plans)
        labels, split = flow.own_outputs(self._labels), flow.own_outputs(self._split)
        return View(flow, Targets.gather(labels, split, self._engine.group, self._task), recurring, inputs)
