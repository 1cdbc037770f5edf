"""What one forward pass of a user's module needs, whatever kind of graph it gets.

Whose rows there are (``Places``), how many over all workers (``Totals``), the engine, random draws, the user's place in the
code, and what the log says. ``Maker`` makes sessions and lives as long as the model. Nothing here knows what a layer may ask a
graph for: a front-end (``dgl_graph.py``) does.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Tensors
from sargnn.errors import ConfigError, nearest
from sargnn.graph.schema import Schema
from sargnn.modules.tag import JOINED, Count, Mark, Rows, mark_of, user_line
from sargnn.plan.layer_plan import LayerPlan

if TYPE_CHECKING:
    from sargnn.modules.calls import StockCalls

_TOTALS = "totals"
"""Of a plan's ``Totals`` among what is kept with it: they go where the plan goes, to a file and back."""


@contextmanager
def paused() -> Iterator[None]:
    """Calls inside are PyTorch's own: for code of this package that a user's forward calls."""
    if not torch._C._len_torch_function_stack():
        yield
        return
    with torch.overrides._pop_mode_temporarily():
        yield


class Places:
    """Whose rows a table's rows are, as the layer plans of one view have them.

    Args:
        group: the workers.
        plans: one per layer.
    """

    def __init__(self, group: Group, plans: Sequence[LayerPlan]) -> None:
        self.group, self._plans = group, plans

    def node_ids(self, rows: Rows) -> Tensor:
        """int64 [N], the original ids of the rows that layer ``rows.level`` reads, or that the last one gives.

        Those of a later level are the first of an earlier one's.
        """
        if rows.level < len(self._plans):
            plan = self._plans[rows.level]
            if rows.type < 0:  # of all types, in one table
                return plan.node_ids
            return plan.node_ids[plan.row_bounds[rows.type] : plan.row_bounds[rows.type + 1]]
        plan = self._plans[-1]
        return plan.self_rows(plan.node_ids)[plan.out_bounds[rows.type] : plan.out_bounds[rows.type + 1]]

    def count(self, rows: Rows, own: int) -> Count:
        """``own`` rows of a type, as a number that knows how many all workers have, where these are all of them here."""
        plan = self._plans[min(rows.level, len(self._plans) - 1)] if self._plans else None
        totals: Totals | None = None if plan is None else plan.kept.get(_TOTALS)
        if plan is None or totals is None or rows.kind != "nodes":
            return Count(own, own, rows.kind, rows)
        inputs = rows.level < len(self._plans)
        bounds, by_type = (plan.row_bounds, totals.rows_by_type) if inputs else (plan.out_bounds, totals.outputs_by_type)
        here, everywhere = bounds[-1], sum(by_type)
        if rows.type >= 0:
            here, everywhere = bounds[rows.type + 1] - bounds[rows.type], by_type[rows.type]
        return Count(own, everywhere if own == here else own, "nodes", rows)

    @property
    def schema(self) -> Schema:
        """Of the whole graph; a relation's plan has one of its own."""
        return self._plans[0].schema

    def size(self, rows: Rows) -> Count:
        """How many rows of a node type, or of all types, a layer reads, or the last one gives."""
        inputs = rows.level < len(self._plans)
        bounds = self._plans[rows.level].row_bounds if inputs else self._plans[-1].out_bounds
        return self.count(rows, int(bounds[-1] if rows.type < 0 else bounds[rows.type + 1] - bounds[rows.type]))

    def types_in(self, mark: Mark | None) -> tuple[Rows, ...]:
        """The node types' rows that a table has one after the other; nothing where it is no such table."""
        if mark is None or mark.dim or not mark.is_single or mark.numbered:
            return ()
        parts: tuple[Any, ...] = ()
        if mark.rows is not None and mark.rows.type < 0:
            parts = tuple(Rows("nodes", t, mark.rows.level) for t in range(len(self.schema.node_types)))
        elif mark.rows is None and isinstance(mark.set, tuple) and mark.set[0] == JOINED:
            parts = mark.set[1:]
        return parts if all(isinstance(part, Rows) and part.kind == "nodes" for part in parts) else ()

    def first_node_ids(self, rows: Rows, count: int) -> Tensor:
        """The original ids of the first ``count`` rows, int64 [count].

        Rows that were made of those of an earlier level may be more than those of the level that they are noted for.
        """
        for level in range(rows.level, -1, -1):
            ids = self.node_ids(replace(rows, level=level))
            if count <= len(ids):
                return ids[:count]
        raise AssertionError(f"{count} rows of {rows}, which has fewer")

    def edge_ids(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """int64 [E] each, the original ids of the edges' sources and destinations."""
        plan = self._plans[rows.level]
        if plan.relations is None:
            return plan.edge_ends()
        return (plan.relations.joined[0] if rows.type < 0 else plan.relations.plans[rows.type]).edge_ends()


@dataclass(frozen=True)
class Totals:
    """What a plan has, counted over all workers.

    Attributes:
        rows_by_type: input rows of each node type.
        outputs_by_type: output rows of each node type.
        edges: of all relations.
    """

    rows_by_type: tuple[int, ...]
    outputs_by_type: tuple[int, ...]
    edges: int

    @property
    def rows(self) -> int:
        return sum(self.rows_by_type)

    @property
    def outputs(self) -> int:
        return sum(self.outputs_by_type)

    @property
    def is_block(self) -> bool:
        """Whether some worker computes not all rows of the layer."""
        return self.rows_by_type != self.outputs_by_type


@dataclass
class Asked:
    """What a forward pass asked of ``graph.blocks``.

    Attributes:
        numbers: of which blocks.
        drawn: how many it went through, one after the other.
        counted: it asked how many there are.
    """

    numbers: set[int] = field(default_factory=set)
    drawn: int = 0
    counted: bool = False


class Maker:
    """Makes the sessions of one model.

    Args:
        path: the user's file, for errors.

    Attributes:
        report: lines for the log: what each call of a graph became, said once.
        owners: who owns what is kept of constant rows, by its name.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.report: list[str] = []
        self.owners: dict[Hashable, object] = {}

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:
        """Count what plans hold over all workers; all of them must call it together, before a plan is first used."""
        for plan in plans:
            for layer_plan in (plan, *(plan.relations.plans if plan.relations else ())):
                if _TOTALS not in layer_plan.kept:
                    layer_plan.kept[_TOTALS] = _count(engine, layer_plan)


def _count(engine: Engine, plan: LayerPlan) -> Totals:
    by_type = [b - a for bounds in (plan.row_bounds, plan.out_bounds) for a, b in zip(bounds, bounds[1:], strict=False)]
    totals = engine.group.sum_(torch.tensor([plan.num_edges, *by_type], dtype=torch.int64)).tolist()
    types = len(plan.row_bounds) - 1
    return Totals(tuple(totals[1 : types + 1]), tuple(totals[types + 1 :]), totals[0])


class Session:
    """One forward pass.

    Args:
        maker: has the user's file, the log's lines and what is kept from pass to pass.
        engine: the worker's.
        calls: sees what the module calls of PyTorch, and numbers draws.
        training: whether this is a step of training, which decides what is kept.
        num_blocks: how many layers there are; None while that is being found out.

    Attributes:
        asked: what was asked of blocks so far.
        passing: what was made of edges for this pass alone.
    """

    def __init__(self, maker: Maker, engine: Engine, calls: StockCalls, *, training: bool, num_blocks: int | None) -> None:
        self.engine, self.calls, self.path = engine, calls, maker.path
        self.num_blocks, self.asked = num_blocks, Asked()
        self.passing: dict[int, Any] = {}
        calls.session = weakref.ref(self)  # no cycle: a pass's tensors go when it ends
        self._maker, self._training = maker, training

    def totals(self, plan: LayerPlan) -> Totals:
        """What a plan has, counted over all workers."""
        totals: Totals = plan.kept[_TOTALS]
        return totals

    def kept(self, name: Hashable, plan: LayerPlan, compute: Callable[[], Tensors]) -> Tensors:
        """What ``compute()`` gives of constant rows. Training decides what is kept; an evaluation may read it.

        What a module has written to in place is computed anew.
        """
        owners = self._maker.owners
        if self._training:
            owners.setdefault(name, object())
        if name not in owners:
            return compute()
        tensors = self.engine.constant(owners[name], plan, compute)
        versions = [tensor._version for tensor in tensors]
        return tensors if plan.kept.setdefault(owners[name], versions) == versions else compute()

    def takes_rows(self, tensor: Tensor, rows: Rows, what: str) -> None:
        """Raise ``ConfigError`` unless, on several workers, a tensor's rows are these in their order.

        Args:
            what: they are to be, such as ``rows of the source nodes``.
        """
        mark = mark_of(tensor)
        if self.calls.group.world == 1 or (mark is not None and mark.is_table_of(rows)):
            return
        why = "it was made without the graph's number of rows" if mark is None else mark.numbered or mark.why
        raise self.wrong(
            f"A tensor that is no table of the graph's rows in their order cannot be {what}.",
            given=f"{why or 'rows of something else'}",
            hint="make it of rows that the graph gave, or with x.size(0) rows",
        )

    def note(self, line: str) -> None:
        """A line for the log, with the user's place."""
        if (placed := f"{self.place()}: {line}") not in self._maker.report:
            self._maker.report.append(placed)

    def place(self) -> str:
        """The user's file and line."""
        return user_line(self.path)

    def place_of(self, func: Any) -> str:
        """Where a function of the user's is defined."""
        code = getattr(func, "__code__", None)
        return self.place() if code is None else f"{code.co_filename} line {code.co_firstlineno}"

    def place_of_error(self, error: BaseException) -> str:
        """The last line of the user's file in an error's trace."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == self.path]
        return f"{own[-1].filename} line {own[-1].lineno}" if own else self.place()

    def not_there(self, what: str, name: str, known: Sequence[str], otherwise: str, hint: str) -> ConfigError:
        """The error for what a graph does not have, called where it was asked for.

        Who asks in the user's file has perhaps meant another name. A layer from elsewhere has not: then its own line is told.

        Args:
            what: which graph.
            name: what it was asked for.
            known: names that it has.
            otherwise: some of them, where none is like it.
            hint: what to do.
        """
        frame = sys._getframe(2)
        asker = frame.f_code.co_filename
        if self.path is not None and asker != self.path:
            return self.wrong(
                f"A layer asks for '{name}', which {what} does not have.", given=f"{asker} line {frame.f_lineno}", hint=hint
            )
        return self.wrong(f"{what.capitalize()} has no '{name}'.", allowed=nearest(name, known) or otherwise, hint=hint)

    def wrong(
        self, what: str, *, given: object = None, place: str | None = None, allowed: Any = None, hint: str | None = None
    ) -> ConfigError:
        """An error about the user's code, with its place."""
        where = place or self.place()
        return ConfigError(what, given=where if given is None else f"{given}; {where}", allowed=allowed, hint=hint)
