"""Edges made of a layer's edges: some of them, these with other self-loops, or the reversed ones.

PyG's layers change their edges before they use them. What they make here are plans of the same rows (``plan.variants``).
They are kept with the plan that they are made of where they are the same in every pass.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.expressions import AtEnd, Call, Changer, Column, Field, Node, Softmax, Where, Written, function_of
from sargnn.modules.folds import Edges
from sargnn.modules.pending_fold import Fold
from sargnn.modules.session import paused
from sargnn.modules.tag import Mark, set_mark, tag_of
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.variants import Loops, are_loops, reversed_plan, with_edges, with_loops

_OTHER_END: dict[Where, Where] = {"u": "v", "v": "u"}
_NOT = ("invert", "bitwise_not", "logical_not")


class OtherEdges(Edges):
    """Edges that are none of the graph's relations: their rows are those of nobody else."""

    def as_rows(self, values: Tensor) -> Tensor:
        why = "they are rows of edges that a layer has changed"
        return set_mark(values, Mark(None, 0, len(values), why, set=self.rows_key), shared=False)

    @property
    def rows_key(self) -> Hashable:
        return "edges", id(self.plan)


class DerivedEdges(OtherEdges):
    """Some of a layer's edges, or these with other self-loops.

    Attributes:
        positions: int64 [E], which of the parent's edges each is; -1: a self-loop that the parent does not have.
        counts_sources: whether the plan has degrees of sources.
        loops: how they were made of others last, if with other self-loops.
    """

    parent: Edges
    positions: Tensor
    loops: Loops | None

    def out_degrees(self) -> Tensor:
        return self.plan.out_degrees if self.counts_sources else reverse(self).plan.in_degrees


def loops_of_run(run: EdgeRun, fields: Any) -> Tensor:
    """bool [E], which edges of a run are self-loops."""
    return run.src_ids == run.dst_ids


def is_loop() -> Node:
    """Whether an edge is a self-loop, as an expression."""
    return Written((), torch.bool, loops_of_run, (), ())


def with_self_loops(edges: Edges, loops: Loops) -> Edges:
    """The edges with other self-loops, kept with their plan.

    Raises:
        ConfigError: the edges' ends are nodes of two types, or self-loops would be added beside others.
    """
    if edges.sources.type != edges.destinations.type:
        raise edges.session.wrong("Self-loops are of edges between nodes of one type.")
    if loops == "each":
        _check_without_loops(edges)
    if isinstance(edges, DerivedEdges) and edges.loops == loops:
        return edges
    return _derived(edges, ("loops", loops), lambda plan: with_loops(plan, loops), loops=loops)


def _check_without_loops(edges: Edges) -> None:
    """Raise ``ConfigError`` where some of the edges are self-loops; all workers must call it together."""
    below = edges
    while isinstance(below, DerivedEdges) and below.loops is None:
        below = below.parent
    if isinstance(below, DerivedEdges) and below.loops == "without":
        return
    kept = edges.plan.kept
    if "self-loops" not in kept:
        kept["self-loops"] = int(edges.session.engine.group.sum_(are_loops(edges.plan).sum()).item())
    if kept["self-loops"]:
        raise edges.session.wrong(
            "Self-loops are added to edges that have some.",
            given=f"{kept['self-loops']} self-loops",
            allowed="add_remaining_self_loops, or remove_self_loops before add_self_loops",
        )


def masked(edges: Edges, mask: Node) -> Edges:
    """The edges where a bool expression of them holds; all workers must call it together."""
    loops = _picks_loops(mask)
    if loops is not None:
        return with_self_loops(edges, "only" if loops else "without")
    passing = edges.session.passing
    key = _key(mask)
    if key is None and id(mask) in passing:
        known: Edges = passing[id(mask)][1]
        return known
    made = _derived(edges, key, lambda plan: with_edges(plan, edges.edge_values(mask)))
    if key is None:
        passing[id(mask)] = mask, made
    return made


def _picks_loops(mask: Node) -> bool | None:
    """Whether a condition holds for self-loops alone, or for all other edges; None: neither."""
    if isinstance(mask, Written):
        return True if mask.func is loops_of_run else None
    if function_of(mask) not in _NOT:
        return None
    inner = _picks_loops(mask.args[0])  # type: ignore[attr-defined]
    return None if inner is None else not inner


def _key(node: Any) -> Hashable | None:
    """What tells an expression of constant fields from others in every pass; None where it reads anything else."""
    if isinstance(node, (bool, int, float, str)):
        return ("number", node)
    if isinstance(node, slice):
        return ("slice", node.start, node.stop, node.step)
    if isinstance(node, tuple):
        parts = [_key(part) for part in node]
        return None if None in parts else ("several", *parts)
    if isinstance(node, Field) and node.where == "e" and tag_of(node.tensor).constant:
        return ("field", id(node.tensor))
    if isinstance(node, Column):
        return ("column", node.name)
    if isinstance(node, Written) and node.func is loops_of_run:
        return ("loops",)
    if isinstance(node, Call) and not node.kwargs:
        parts = [_key(part) for part in node.args]
        return None if None in parts else (function_of(node), *parts)
    return None


def _derived(
    edges: Edges,
    key: Hashable | None,
    make: Callable[[LayerPlan], tuple[LayerPlan, Tensor]],
    *,
    loops: Loops | None = None,
) -> DerivedEdges:
    kept = edges.plan.kept.setdefault("derived edges", {}) if key is not None else {}
    session = edges.session
    if key not in kept:
        with paused():
            plan, positions = make(edges.plan)
            total = int(session.engine.group.sum_(torch.tensor([plan.num_edges])).item())
        kept[key] = plan, positions, total
    plan, positions, total = kept[key]
    totals = dataclasses.replace(edges.totals, edges=total)
    made = DerivedEdges(session, plan, edges.sources, edges.destinations, edges.rows, totals)
    made.parent, made.positions = edges, positions
    # Self-loops change both degrees alike, so that nobody need be asked.
    made.loops, made.counts_sources = loops, loops is not None and edges.counts_sources and not totals.is_block
    return made


def moved(node: Node, edges: Edges, to: Edges) -> Node:
    """An expression of some edges on other edges made of the same ones; edges that were not among the former get any value."""
    if edges.plan is to.plan:
        return node
    changed: Node = _Moved(edges, to).changed(node)
    return changed


def _over(edges: Edges, softmax: Softmax) -> Node:
    """A softmax over these edges as an expression that other edges may read: exp(logit - log sum exp of the destination's)."""
    shape, dtype, logits = softmax.shape, softmax.dtype, softmax.logits
    total = AtEnd(shape, dtype, Fold(edges, "logsumexp", logits, dtype), "v")
    return Call(shape, dtype, torch.exp, (Call(shape, dtype, torch.sub, (logits, total), {}),), {})


class _Moved(Changer):
    """Puts other rows in place of those that edges carry; the graph's own columns need none."""

    def __init__(self, edges: Edges, to: Edges) -> None:
        super().__init__()
        self._edges, self._to = edges, to

    @cached_property
    def _places(self) -> Tensor:
        """int64 [E], which of the former rows each edge has."""
        known = _ancestors(self._edges)
        plan, wanted = next((plan, wanted) for plan, wanted in _ancestors(self._to) if any(plan is other for other, _ in known))
        own = next(positions for other, positions in known if other is plan)
        place = torch.full((plan.num_edges + 1,), -1)  # -1 picks the last
        place[own[own >= 0]] = torch.nonzero(own >= 0)[:, 0]
        return place[wanted].clamp(min=0)

    def change(self, node: Node) -> Node:
        if isinstance(node, Field) and node.where == "e":
            table = node.tensor if len(node.tensor) else node.tensor.new_zeros(1, *node.tensor.shape[1:])
            with paused():
                return dataclasses.replace(node, tensor=table[self._places])
        if isinstance(node, Softmax):
            return self.changed(_over(self._edges, node))
        return super().change(node)


def _ancestors(edges: Edges) -> list[tuple[LayerPlan, Tensor]]:
    """The plans that edges were made of, with int64 [E], which of a plan's edges each is, or -1; from themselves upwards."""
    positions = torch.arange(edges.plan.num_edges)
    listed = [(edges.plan, positions)]
    while isinstance(edges, DerivedEdges):
        positions = torch.cat([edges.positions, edges.positions.new_tensor([-1])])[positions]
        edges = edges.parent
        listed.append((edges.plan, positions))
    return listed


def reverse(edges: Edges) -> Edges:
    """The same edges from their destinations to their sources; all workers must call it together.

    Raises ``ConfigError``: a layer that computes fewer rows than it reads, or edges between two types.
    """
    session, plan = edges.session, edges.plan
    if edges.sources.type != edges.destinations.type or edges.totals.is_block:
        raise session.wrong(
            "A sum over the edges out of each node needs edges of other workers, which only full batches have.",
            allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null, and edges between nodes of one type",
            hint="flow='source_to_target', or an undirected graph",
        )
    if "reversed" not in plan.kept:
        with paused():
            plan.kept["reversed"] = reversed_plan(plan, session.engine.group, session.engine.dtype)
    return OtherEdges(session, plan.kept["reversed"][0], edges.destinations, edges.sources, edges.rows, edges.totals)


class Reversed(Changer):
    """Expressions of edges as expressions of the reversed ones."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        self._edges = edges

    def change(self, node: Node) -> Node:
        if isinstance(node, Field):
            if node.where == "e":
                return self._carried(node)
            return dataclasses.replace(node, where=_OTHER_END[node.where])
        if isinstance(node, Column):
            return self._carried_column(node)
        if isinstance(node, AtEnd):
            return dataclasses.replace(node, where=_OTHER_END[node.where])
        if isinstance(node, Softmax):
            return self.changed(_over(self._edges, node))
        return super().change(node)

    def _carried(self, node: Field) -> Field:
        """What edges carry, at who has the reversed edges."""
        session = self._edges.session
        if node.tensor.requires_grad:
            raise session.wrong(
                "What edges carry is learned, and read along the reversed edges, which other workers have.",
                hint="flow='source_to_target'",
            )
        reverse(self._edges)
        _, crossing = self._edges.plan.kept["reversed"]
        with paused():
            return dataclasses.replace(node, tensor=crossing.carry(session.engine.group, node.tensor))

    def _carried_column(self, node: Column) -> Field:
        """What the graph's edges carry, at who has the reversed edges: a table, sent once and kept."""
        kept = self._edges.plan.kept
        if (name := ("reversed", node.name)) not in kept:
            kept[name] = self._carried(Field(node.shape, node.dtype, "e", self._edges.column(node))).tensor
        return Field(node.shape, node.dtype, "e", kept[name])
