"""What everything around a model knows of it: a stack of this package's layers, or a module of the user's.

Letters: N input rows, M output rows, F features, C outputs, D width of the first layer's input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.rebuild import rebuild_of, self_rows
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.plan.cover import Costs
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.rng import Purpose

if TYPE_CHECKING:
    from sargnn.graph.queries import Queries
    from sargnn.modules.calls import Observe
    from sargnn.modules.session import Places


@dataclass
class LayerInput:
    """What a layer reads: rows, and labels beside them where they are part of the input.

    Attributes:
        rows: [N, F].
        labels: [N, C], without gradient. They change every epoch, also where ``rows`` are constant.
        initial: [N, hidden], what a stack's first layer gave, activated and not dropped; or the rows that layers add to.
        jumped: [N, ...], the rows of all layers so far, joined, for the last layer (``models.tuned``).
        queries: what a model is asked whose rows depend on it.
        given: nobody but the layer reads the rows, which were made for it, beside what backward passes make again.
    """

    rows: Tensor
    labels: Tensor | None = None
    initial: Tensor | None = None
    jumped: Tensor | None = None
    queries: Queries | None = None
    given: bool = False

    @property
    def blocks(self) -> list[Tensor]:
        return [self.rows] if self.labels is None else [self.rows, self.labels]

    def joined(self) -> Tensor:
        """[N, F + C]."""
        return self.rows if self.labels is None else torch.cat(self.blocks, 1)

    def taken(self) -> Tensor:
        """``joined()`` for the last reader: rows that backward computes again go while the layer aggregates."""
        rows = self.joined()
        if rows is self.rows:
            self.let_go()
        return rows

    def let_go(self) -> None:
        """Of rows that backward computes again, or does not ask for; nobody reads them here any more."""
        if not torch.is_grad_enabled() or rebuild_of(self.rows) is not None:
            self.rows = self.rows.new_empty(0, self.rows.shape[1])

    def self_rows(self, plan: LayerPlan) -> list[Tensor]:
        """The blocks' rows that the output rows are, [M, ...] each."""
        return [self_rows(plan, block) for block in self.blocks]

    def fork(self, engine: Engine) -> tuple[LayerInput, LayerInput]:
        rows, other = engine.operators.fork(self.rows)
        return replace(self, rows=rows), replace(self, rows=other)

    def fork_own(self, engine: Engine, plan: LayerPlan) -> tuple[LayerInput, list[Tensor]]:
        """One reader's input, and for another the blocks of ``self_rows``."""
        rows, own = engine.operators.fork_own(plan, self.rows)
        others = [] if self.labels is None else [plan.self_rows(self.labels)]
        return replace(self, rows=rows), [own, *others]

    def prepared(self, engine: Engine, plan: LayerPlan, *, constant: bool, p: float) -> LayerInput:
        """A model's input for its first layer: labels stay apart from rows that the layer takes for ``constant``, else they are
        joined to the rows, and both are dropped with probability p.
        """
        x = self if constant and engine.splits_columns else LayerInput(self.joined())
        if not p:
            return x
        return LayerInput(engine.operators.dropout(x.joined(), plan.node_ids, engine.draw(Purpose.INPUT_DROPOUT, 0, p)))


class Model(nn.Module, ABC):
    """The whole model, from the rows of its ``inputs`` to outputs. ``reads_labels``: it needs them, whatever is configured."""

    inputs: Inputs
    reads_labels: bool = False
    observer: Callable[[Places], Observe] | None = None
    """Makes, for each forward pass, what is shown every result of the user's own code; None in a stack of ours."""
    keeps_constant_outputs: bool = False
    """Of constant rows it keeps one row per output of a message flow, so that each of many flows may have its own."""
    reads_out_degrees: bool = True
    """Whether it reads how many edges start from a row."""
    takes_flows: bool = True
    """Whether each of its layers works on a graph of its own, so that it can compute some rows alone."""
    by_relation: bool | Literal["joined"] = False
    """Its layers' plans of a typed graph are those of single relations (``plan.relations``), or of all joined."""

    @property
    @abstractmethod
    def uses_edges(self) -> list[bool]:
        """Per layer, whether it aggregates."""

    @property
    def edges_in_backward(self) -> list[bool]:
        """Per layer, whether gradients go back through its edges."""
        return self.uses_edges

    @property
    def norms_over_rows(self) -> bool:
        """Whether it has norms over rows that are computed together, such as batch norm."""
        return any(isinstance(module, DistributedBatchNorm | _BatchNorm) for module in self.modules())

    @property
    def num_kept(self) -> int:
        """Of how many layers the inputs may be kept, or computed again (``engine.segments``)."""
        return 1

    @abstractmethod
    def kernels(self, engine: Engine) -> set[str]:
        """The names of the kernels that its aggregations run on."""

    def partial_costs(self, engine: Engine, counts: Sequence[RowCounts | None]) -> list[Costs | None]:
        """Per layer what rows and partial results cost on ``LayerPlan.counts``; None where it has no partial results."""
        return [None] * len(self.uses_edges)

    def why_rows(self, engine: Engine) -> list[str | None]:
        """Per layer why only rows travel, where that is so."""
        return ["messages of a user's module are aggregated where they end"] * len(self.uses_edges)

    def try_out(self, config: RunConfig, shape: GraphShape) -> None:  # noqa: B027 - what is written here is tested here
        """Find out, before anything long and without a worker, whether it works on such a graph and how many layers it has.

        Raises ``ConfigError`` where it does not.
        """

    def try_without_edges(  # noqa: B027 - models of the package take nodes without edges
        self, config: RunConfig, shape: GraphShape, find_lacking: Callable[[], Mapping[int, int]]
    ) -> None:
        """Find out, without a worker, whether it works where nodes have no edges into them, if there are such nodes.

        ``find_lacking`` gives what ``graph.examine_edges.nodes_without_edges`` does. Raises ``ConfigError`` where it does not.
        """

    def remarks(self) -> list[str]:
        """Lines for a person: what of the user's own code is computed otherwise than it says."""
        return []

    def calls(self) -> list[str]:
        """Lines for the log: what each call in the user's own code has become so far."""
        return []

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        """Disjoint groups of parameters that may have a weight decay of their own, by name."""
        return {}

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:  # noqa: B027 - many decide nothing
        """Decide what depends on the plans, before they are first used; all workers must call it together."""

    def shares_constants(self, engine: Engine) -> bool:
        """Whether its first layer aggregates constant rows: a row's aggregate serves every flow that computes the row."""
        return False

    def first_constant(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor | None:
        """The first layer's aggregate of constant rows, [M, F]; None where there is none after all."""
        return None

    @abstractmethod
    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        """Outputs [M, C] of the last layer's output rows.

        Args:
            plans: one per layer, prepared.
            x: [N, D], rows of ``inputs``, with labels where they are part of the input.
            hidden: stop before the last layer and give its input, [M, hidden].
        """
