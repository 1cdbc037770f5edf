"""Several sets of edges as one: what ``torch.cat`` of several ``edge_index`` is, each with its ends' numbers moved up.

A layer that attends over all relations at once puts the rows of all types into one table, moves each relation's ends to where
their rows begin there, and joins the edges. Here a joined tensor is a lazy tensor for each set (``lazy.py``): a function of it
is one of each, its rows are those of each set's part of the table, and what is scattered to its ends is folded set by set and
then joined, each destination's sums as one.

Letters: M rows of the joined table of destinations, E edges of this worker, K heads.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sargnn.engine.reducers.gat import join_softmaxes
from sargnn.errors import ConfigError
from sargnn.modules.call import answer
from sargnn.modules.expressions import (
    EDGE_COUNT,
    AtEnd,
    Call,
    Changer,
    Node,
    Resolved,
    SharedSoftmax,
    Softmax,
    SoftmaxTotal,
    flat,
    function_name,
    map_values,
)
from sargnn.modules.lazy import (
    EdgeIndex,
    EdgeRows,
    Ends,
    Filled,
    Folded,
    Handler,
    Joined,
    JoinedFolded,
    Lazy,
    blank,
    check_alone,
    edge_rows,
    filled,
    own_shape,
    values,
)
from sargnn.modules.lazy_folds import SCATTERS, SMALL, shifted_softmax
from sargnn.modules.session import paused
from sargnn.modules.tag import JOINED, Mark, mark_of, own_of, set_mark, tagged

if TYPE_CHECKING:
    from sargnn.modules.calls import StockCalls
    from sargnn.modules.folds import Edges


class Run(NamedTuple):
    """A run of a joined table: the rows of a node type. Two types without rows here begin in the same place of it.

    Attributes:
        first: where it begins on all workers together.
        type: the node type.
    """

    first: int
    type: int


def run_of(ends: Ends) -> Run:
    """The run that a set's ends are in."""
    return Run(operator.index(ends.first), ends.rows.type)


@dataclass(frozen=True)
class _Segment:
    """A run of a joined fold's rows."""

    fold: JoinedFold
    run: Run
    writes = 0  # refused

    def rows(self) -> Tensor:
        """They, computed; all workers must ask together."""
        return self.fold.segments()[self.run]


class JoinedFold:
    """A fold over the edges of all sets into each row of a table.

    Args:
        kind: ``sum``, ``max``, ``min``, ``mul`` or ``count``.
        parts: of each set the ends that its rows go to, and the fold of its own edges.
        rows: M.
        plus: what is added to the table, but not to what edges read of it: a number too small to be seen there.
    """

    def __init__(self, kind: str, parts: list[tuple[Ends, Any]], rows: int, *, plus: float = 0.0) -> None:
        self.kind, self.parts, self._rows, self._plus = kind, parts, rows, plus
        self._firsts = {run_of(ends): own_of(ends.first) for ends, _ in parts}
        self._segments: dict[Run, Tensor] = {}

    def segments(self) -> dict[Run, Tensor]:
        """The rows that edges end in; all workers must ask together."""
        if not self._segments and self._is_attention():
            sets = [(run_of(ends), folded.edges, folded.fold.node) for ends, folded in self.parts]
            self._segments = attention_over_sets(sets) or {}
        if not self._segments:
            for number, (ends, folded) in enumerate(self.parts):
                run, rows = run_of(ends), folded.fold.rows()
                before = self._segments.get(run)
                with paused():
                    joined = rows if before is None else self._both(number, before, rows)
                self._segments[run] = tagged(joined, folded.edges.destinations)
        return self._segments

    def rows_from(self, rows: slice) -> Tensor:
        """Some rows of the table in their order; all workers must ask together."""
        # Told by the numbers of all workers: what a worker takes decides what it waits for in backward.
        start, stop = rows.start or 0, rows.stop
        for ends, folded in self.parts:
            run = run_of(ends)
            if start == run.first and stop is not None and folded.edges.number_of_dst_nodes().total == stop - start:
                return self.segments()[run]
        return self.rows()[own_of(start) : own_of(stop)]

    def rows(self) -> Tensor:
        """[M, ...]."""
        segments = self.segments()
        like = next(iter(segments.values()))
        with paused():
            pieces, at = [], 0
            for run in sorted(segments, key=lambda run: (self._firsts[run], len(segments[run]))):
                pieces += [like.new_zeros(self._firsts[run] - at, *like.shape[1:]), segments[run]]
                at = self._firsts[run] + len(segments[run])
            table = torch.cat([*pieces, like.new_zeros(self._rows - at, *like.shape[1:])]) + self._plus
        return set_mark(
            table, Mark(None, 0, self._rows, "rows of several types are in one table", set=self._set()), shared=False
        )

    def _set(self) -> Hashable:
        """What tells the table's rows from others: those of its types one after the other, with nothing between them."""
        at, keys, sizes = 0, [], []
        runs = {run_of(ends): folded.edges.destinations for ends, folded in self.parts}
        for run, rows in sorted(runs.items(), key=operator.itemgetter(0)):
            sizes.append(self.parts[0][0].edges.session.calls.places.size(rows))
            if run.first != at:
                return "types"
            at += sizes[-1].total
            keys.append(rows)
        return (JOINED, *keys) if sum(size.own for size in sizes) == self._rows else "types"

    def _is_attention(self) -> bool:
        """Whether they are sums of shares of one softmax over the edges of all sets."""
        groups = [shared_softmax(folded.fold.node) for _, folded in self.parts] if self.kind == "sum" else [None]
        return groups[0] is not None and all(group is groups[0] for group in groups)

    def _both(self, number: int, before: Tensor, rows: Tensor) -> Tensor:
        """The rows of some sets, and of another one into the same destinations."""
        if self.kind in ("sum", "count"):
            return before + rows
        if self.kind == "mul":
            return before * rows
        run, own = run_of(self.parts[number][0]), self.parts[number][1].edges

        def has_edges(edges: Edges) -> Tensor:
            return (edges.plan.in_degrees > 0).view(-1, *[1] * (rows.dim() - 1))

        others = [folded.edges for ends, folded in self.parts[:number] if run_of(ends) == run]
        there = torch.stack([has_edges(edges) for edges in others]).any(0)
        both = (torch.maximum if self.kind == "max" else torch.minimum)(before, rows)
        return torch.where(there & has_edges(own), both, torch.where(there, before, rows))


class SoftmaxGroup:
    """A softmax over the edges of several sets.

    Args:
        sets: of each set its destinations' run, its edges and its logits [E, K].
    """

    def __init__(self, sets: list[tuple[Run, Edges, Node]]) -> None:
        self._sets = sets
        self._totals: dict[Run, Tensor] = {}

    def total(self, run: Run) -> Tensor:
        """[rows of the run, K], the logarithm of the sum of exp(logits); all workers must ask together."""
        if not self._totals:
            for at, edges, logits in self._sets:
                rows = edges.folded("logsumexp", logits, "edge softmax")
                with paused():
                    rows = rows.masked_fill((edges.plan.in_degrees == 0).view(-1, *[1] * (rows.dim() - 1)), -torch.inf)
                    self._totals[at] = torch.logaddexp(self._totals[at], rows) if at in self._totals else rows
        return self._totals[run]


def shared_softmax(node: Node) -> SoftmaxTotal | None:
    """The softmax over several sets of edges that an expression has a part of."""
    look = _Alone()
    look.changed(node)
    return look.group


class _Alone(Changer):
    """Puts a softmax over a set's own edges in place of that over the edges of all sets."""

    group: SoftmaxTotal | None = None

    def change(self, node: Node) -> Node:
        if isinstance(node, SharedSoftmax):
            self.group = node.group
            return Softmax(node.shape, node.dtype, node.logits)
        return super().change(node)


def attention_over_sets(sets: list[tuple[Run, Edges, Node]]) -> dict[Run, Tensor] | None:
    """Sums of a softmax's shares over the edges of all sets, from fused kernels: each set's attention by itself, and these
    joined by their sums of exp(logits); None where no kernel computes them."""
    outs: dict[Run, list[tuple[Tensor, Tensor]]] = {}
    nodes = [_Alone().changed(Resolved().changed(node)) for _, _, node in sets]
    if not all(edges.has_attention(node) for (_, edges, _), node in zip(sets, nodes, strict=True)):
        return None
    for (run, edges, _), node in zip(sets, nodes, strict=True):
        outs.setdefault(run, []).append(edges.attention(node))
    with paused():
        joined = {
            run: join_softmaxes(*zip(*several, strict=True)).unflatten(1, nodes[0].shape) for run, several in outs.items()
        }
    return {run: tagged(joined[run], edges.destinations) for run, edges, _ in sets}


def joined_call(calls: StockCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch gives where one of its arguments is of several sets of edges."""
    if (out := answer(_HANDLERS.get(name), func, args=args, kwargs=kwargs)) is not NotImplemented:
        return out
    first = next((value for value in flat((args, kwargs)) if isinstance(value, Joined)), None)
    if name.startswith("new_"):
        return calls.__torch_function__(func, (type(args[0].parts[0]),), (args[0].parts[0], *args[1:]), kwargs)
    args, kwargs = map_values((args, kwargs), lambda v: v.fold.rows() if isinstance(v, JoinedFolded) else v)

    def again(arguments: Any) -> Any:
        return calls.__torch_function__(func, [type(value) for value in flat(arguments)], *arguments)

    if first is None:
        return again((args, kwargs))
    outs = [again(_of_set((args, kwargs), number)) for number in range(len(first.parts))]
    if isinstance(outs[0], (tuple, list)):
        return type(outs[0])(_joined(several) for several in zip(*outs, strict=True))
    return _joined(outs)


def _of_set(arguments: Any, number: int) -> Any:
    """Arguments as a set has them."""
    return map_values(arguments, lambda value: value.parts[number] if isinstance(value, Joined) else value)


def join(tensors: Any, dim: int) -> Any:
    """``torch.cat`` of indices, or of what the edges of several sets carry."""
    lazy = [tensor for tensor in tensors if isinstance(tensor, Lazy)]
    if lazy and len(lazy) == len(tensors) and all(isinstance(tensor, EdgeIndex) for tensor in tensors) and dim % 2 == 1:
        return _joined(tensors)
    of_edges = [tensor for tensor in lazy if isinstance(tensor, EdgeRows)]
    rest_is_one_row = all(isinstance(t, EdgeRows) or (not isinstance(t, Lazy) and len(t) == 1) for t in tensors)
    several = len({id(tensor.edges.plan) for tensor in of_edges}) > 1 or len(of_edges) < len(tensors)
    return _joined(tensors) if of_edges and rest_is_one_row and several and dim % of_edges[0].dim() == 0 else NotImplemented


def _joined(parts: Any) -> Any:
    like = next((part for part in parts if isinstance(part, Lazy)), None)
    if like is None:
        return NotImplemented
    shape = list(own_shape(like))
    at = 1 if isinstance(like, EdgeIndex) else 0
    shape[at] = sum(part.edges.plan.num_edges for part in parts if isinstance(part, Lazy))
    return blank(Joined, shape, like.dtype, edges=like.edges, parts=tuple(parts))


def _getitem(func: Any, x: Any, key: Any) -> Any:
    if isinstance(x, JoinedFolded) and isinstance(key, slice) and key.step is None:
        return x.fold.rows_from(key)
    return _picked(func, x, 0, key)


def _picked(func: Any, input: Any, dim: int, index: Any) -> Any:
    """Rows of a joined table at the edges' ends; of a joined fold the rows of a type."""
    if not isinstance(index, Joined) or not all(isinstance(ends, Ends) for ends in index.parts) or dim % input.dim() != 0:
        return NotImplemented
    parts = []
    for ends in index.parts:
        edges = ends.edges
        count = edges.plan.num_rows if ends.side == "u" else edges.plan.num_out
        if isinstance(input, JoinedFolded):
            segment = _Segment(input.fold, run_of(ends))
            node: Node = AtEnd(input.fold.parts[0][1].fold.shape, input.dtype, segment, ends.side)
        else:
            check_begin(values(input), ends)
            node = edges.field(ends.side, tagged(values(input)[(first := own_of(ends.first)) : first + count], ends.rows))
        parts.append(edge_rows(edges, node))
    return _joined(parts)


def check_begin(table: Tensor, ends: Ends) -> None:
    """Raise ``ConfigError`` unless, on several workers, the rows of the ends' node type begin in a table where ``ends`` say:
    here, and on all workers together. What a type's rows lie behind is as many rows of the types before it on each worker.
    """
    session, mark = ends.edges.session, mark_of(table)
    if session.calls.group.world == 1:
        return
    begin, asked = (0, 0), (own_of(ends.first), operator.index(ends.first))
    for part in session.calls.places.types_in(mark):
        if part.type == ends.rows.type and begin == asked:
            return
        size = session.calls.places.size(part)
        begin = begin[0] + size.own, begin[1] + size.total
    raise session.wrong(
        "Rows are read in a table in which those of their node type do not begin there.",
        given=f"edge_index + {asked[1]}: {'no rows of nodes' if mark is None else mark.why or 'rows of one type'}",
        allowed="torch.cat of all types' rows, and edge_index + how many rows are before the type's, as x.size(0) tells them",
    )


def check_runs(all_ends: Sequence[Ends]) -> None:
    """Raise ``ConfigError`` unless each set's rows go to where those of their node type may begin in a table of the rows that
    the layer reads, behind all those of some other types, and no type's rows go to those of another one.
    """
    edges, places = all_ends[0].edges, all_ends[0].edges.session.calls.places
    sizes = [places.size(replace(edges.sources, type=t)) for t in range(len(places.schema.node_types))]
    begins: dict[int, set[tuple[int, int]]] = {}
    runs = {run_of(ends) for ends in all_ends}
    for ends in all_ends:
        own, begin = run_of(ends), (own_of(ends.first), operator.index(ends.first))
        if own.type not in begins:
            begins[own.type] = {(0, 0)}
            for size in (*sizes[: own.type], *sizes[own.type + 1 :]):
                begins[own.type] |= {(here + size.own, everywhere + size.total) for here, everywhere in begins[own.type]}
        end = own.first + sizes[own.type].total
        others = [(run.first, run.first + sizes[run.type].total) for run in runs if run.type != own.type]
        if begin not in begins[own.type] or any(first < end and own.first < last for first, last in others):
            raise edges.session.wrong(
                "Messages of joined edges go to rows where those of their node type do not begin.",
                given=f"edge_index + {begin[1]}",
                allowed="edge_index + how many rows are before the type's, as x.size(0) tells them; 0 for the first",
            )


def _scattered(func: Any, target: Any, *given: Any, **named: Any) -> Any:
    """A fold of what edges of several sets carry."""
    index = next((v for v in flat((given, named)) if isinstance(v, Joined) and isinstance(v.parts[0], Ends)), None)
    if index is None:
        return NotImplemented
    if not isinstance(target, Filled) or target.became is not None:
        raise _not_joined(index, func)
    name, size = getattr(func, "__name__", ""), own_shape(target)
    parts = []
    for number, ends in enumerate(index.parts):
        own, of_set = _of_set((given, named), number)
        count = ends.edges.plan.num_out if ends.side == "v" else ends.edges.plan.num_rows
        nothing = filled((count, *size[1:]), target.dtype, target.number)
        made = answer(SCATTERS[name], func, args=(nothing, *own), kwargs=of_set)
        if not isinstance(made, Folded) or made.fold.kind == "mean":  # a mean of means is none of all edges
            raise _not_joined(index, func)
        parts.append((ends, made))
    check_runs(index.parts)
    fold = JoinedFold(parts[0][1].fold.kind, parts, size[0])
    out: JoinedFolded = blank(JoinedFolded, size, target.dtype, edges=index.edges, fold=fold)
    if name.endswith("_"):
        check_alone(target, name)
        target.became = out
    return out


def _not_joined(index: Joined, func: Any) -> ConfigError:
    """The answer to a fold that does not go on from one set's edges to the next."""
    return index.edges.session.wrong(
        f"'{function_name(func)}' is not computed over the joined edges of several relations.",
        allowed="sums, products, maxima and minima into messages.new_zeros(...); means as a sum divided by a count; softmax",
    )


def _div(func: Any, input: Any, other: Any) -> Any:
    """Softmax over the edges of all sets."""
    if not (isinstance(input, Joined) and isinstance(other, Joined)):
        return NotImplemented
    sets: list[tuple[Run, Edges, Node]] = []
    for number, (above, below) in enumerate(zip(input.parts, other.parts, strict=True)):
        if not (isinstance(above, EdgeRows) and isinstance(below, EdgeRows)):
            return NotImplemented
        total = below.node
        if not (isinstance(total, AtEnd) and isinstance(total.fold, _Segment) and total.where == "v"):
            return NotImplemented
        fold = total.fold.fold
        own = fold.parts[number][1].fold
        if fold.kind != "sum" or own.origin is not above.node or own.edges.plan is not above.edges.plan:
            return NotImplemented
        if not own.is_tracked_as_now:
            return NotImplemented
        logits = shifted_softmax(above.node, partial(_largest, number))
        if logits is None:
            return NotImplemented
        sets.append((total.fold.run, above.edges, logits))
    group = SoftmaxGroup(sets)
    nodes = (SharedSoftmax(logits.shape, logits.dtype, logits, group, run) for run, _, logits in sets)
    return _joined([edge_rows(edges, node) for (_, edges, _), node in zip(sets, nodes, strict=True)])


def _largest(number: int, end: AtEnd) -> Any:
    """What a maximum over all sets' edges is of, of one of the sets; None where it is no such maximum."""
    fold = end.fold
    return fold.fold.parts[number][1].fold.origin if isinstance(fold, _Segment) and fold.fold.kind == "max" else None


def _add(func: Any, input: Any, other: Any) -> Any:
    if isinstance(input, JoinedFolded) and isinstance(other, float) and 0 < other <= SMALL:
        parts, size = input.fold.parts, own_shape(input)
        if input.fold.kind == "sum" and all(
            shifted_softmax(part.fold.origin, partial(_largest, number)) for number, (_, part) in enumerate(parts)
        ):
            fold = JoinedFold("sum", parts, size[0], plus=other)
            return blank(JoinedFolded, size, input.dtype, edges=input.edges, fold=fold)
    return NotImplemented


def repeated(tensor: Tensor, sizes: tuple[Any, ...], edges: Edges) -> EdgeRows:
    """``row.expand(number of edges, ...)``: the same row for each edge."""
    with paused():
        row = tensor.expand(1, *sizes[1:])[0]
    return edge_rows(edges, Call(tuple(row.shape), row.dtype, same_row, (row, EDGE_COUNT), {}))


def same_row(row: Tensor, edges: int) -> Tensor:
    """[E, ...], one row for all edges."""
    return row.expand(edges, *row.shape)


_HANDLERS: dict[str, Handler] = {
    "getitem": _getitem,
    "index_select": _picked,
    **dict.fromkeys(SCATTERS, _scattered),
    **dict.fromkeys("div true_divide truediv".split(), _div),
    "add": _add,
}
