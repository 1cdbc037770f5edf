"""Message functions as expressions: DGL's built-in ones, known by their attributes so that DGL is not imported, and the user's.

A user's function is called with the rows of a run of edges, as DGL calls it with all edges. Which fields it reads, and which
tensors beside them have gradients, is found by calling it with made-up edges, once with all and once with some of them: a
message must be the same. Nothing here knows how messages are folded.

Letters: E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.call import is_close, tensors_of
from sargnn.modules.expressions import Call, Field, Item, Node, Where, Written, draw_mask
from sargnn.modules.functions import check_recomputed, known_function
from sargnn.modules.lazy import EdgeRows
from sargnn.modules.session import Session, paused
from sargnn.modules.tag import mark_of
from sargnn.rng import Draw

if TYPE_CHECKING:
    from sargnn.modules.dgl_graph import ShardedGraph

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}
_PROBE_EDGES, _PARTS = 11, ((7, 2, 9, 4, 1), (0, 3, 5, 6, 8, 10))
"""Made-up edges, and those of them that are tried again: a largest one is in one part alone."""
_OF_EDGES = "_sargnn_of_edges"
"""The attribute of a tensor that a user's function has made of made-up edges."""


def is_builtin_message(func: Any) -> bool:
    return hasattr(func, "out_field") and (hasattr(func, "in_field") or hasattr(func, "binary_op")) and hasattr(func, "name")


def is_builtin_reduce(func: Any) -> bool:
    return hasattr(func, "msg_field") and hasattr(func, "out_field") and hasattr(func, "name")


def describe(func: Any) -> str:
    """A function as a log or an error names it."""
    if is_builtin_message(func) or is_builtin_reduce(func):
        return str(func.name)
    return str(getattr(func, "__qualname__", None) or type(func).__name__)


def message_nodes(graph: ShardedGraph, func: Any) -> dict[str, Node]:
    """The messages' expressions by name.

    Raises ``ConfigError`` with the user's file and line: a field is not there, or the function gives no messages.
    """
    if is_builtin_message(func):
        return {func.out_field: _builtin(graph, func)}
    if not callable(func):
        raise graph.session.wrong(
            "A message function is neither one of dgl.function nor a function.",
            given=describe(func),
            allowed="such as fn.copy_u('h', 'm'), or a function of edges that gives a mapping",
        )
    return _written(graph, func)


def _builtin(graph: ShardedGraph, func: Any) -> Node:
    places = func.name.split("_")
    if places[0] == "copy":
        return _field(graph, places[1], func.in_field)
    left, operation, right = places
    first, other = _field(graph, left, func.lhs_field), _field(graph, right, func.rhs_field)
    most = max(len(first.shape), len(other.shape))
    a, b = _filled(first, most), _filled(other, most)
    try:
        shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    except RuntimeError as error:
        raise graph.session.wrong(
            f"Fields of different shapes meet in '{func.name}'.",
            given=f"'{func.lhs_field}' {first.shape}, '{func.rhs_field}' {other.shape}",
            hint="row shapes must be equal, or 1 where they are not",
        ) from error
    dtype = torch.promote_types(a.dtype, b.dtype)
    if operation == "dot":
        products = Call(shape, dtype, torch.mul, (a, b), {})
        return Call((*shape[:-1], 1), dtype, torch.sum, (products,), {"dim": -1, "keepdim": True})
    return Call(shape, dtype, _OPERATIONS[operation], (a, b), {})


def _filled(node: Node, most: int) -> Node:
    """With as many dimensions: 1s behind the edges' dimension, as DGL has it."""
    missing = most - len(node.shape)
    if not missing:
        return node
    shape = (*[1] * missing, *node.shape)
    if isinstance(node, Field) and node.where == "e":  # a field it stays, which a fused kernel takes
        return Field(shape, node.dtype, "e", _fill_shape(node.tensor, missing))
    return Call(shape, node.dtype, _fill_shape, (node, missing), {})


def _fill_shape(rows: Tensor, missing: int) -> Tensor:
    return rows.reshape(len(rows), *[1] * missing, *rows.shape[1:])


def _field(graph: ShardedGraph, place: str, name: str) -> Node:
    """A field by DGL's letter for where it is: u, v or e. Raises ``ConfigError`` where it is not there."""
    value = graph.frames[place][name]
    return value.node if isinstance(value, EdgeRows) else graph.field(place, value)  # type: ignore[arg-type]


class Reads(Mapping[str, Any]):
    """Fields by name, made when they are read."""

    def __init__(self, make: Callable[[str], Any], names: Mapping[str, Any]) -> None:
        self._make, self._names = make, names

    def __getitem__(self, name: str) -> Any:
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Batch:
    """Edges or nodes as DGL shows them to a function."""

    def __init__(self, count: int) -> None:
        self._count = count

    def batch_size(self) -> int:
        return self._count

    def __len__(self) -> int:
        return self._count


class _EdgeBatch(Batch):
    """Two made-up edges, or a run of real ones, as DGL shows edges to a message function: fields [E, ...] of their sources,
    their destinations, and their own."""

    def __init__(self, fields: Mapping[Where, Mapping[str, Tensor]], count: int, ids: Callable[[], tuple[Tensor, Tensor]]):
        super().__init__(count)
        self.src, self.dst, self.data, self._ids = fields["u"], fields["v"], fields["e"], ids

    def edges(self) -> tuple[Tensor, Tensor, None]:
        """Original ids of the edges' sources and destinations; edges have none that is the same on any number of workers."""
        return *self._ids(), None


def _written(graph: ShardedGraph, func: Callable[..., Any]) -> dict[str, Node]:
    draws: dict[int, Draw] = {}
    made: dict[tuple[Where, str], Tensor] = {}
    generator = torch.Generator().manual_seed(1)

    def example(where: Where, part: Tensor | None = None) -> Reads:
        def read(name: str) -> Tensor:
            if (where, name) not in made:
                with torch._C.DisableTorchFunction():
                    node = _field(graph, where, name)
                rows = torch.randn(_PROBE_EDGES, *node.shape, generator=generator).to(graph.device, node.dtype)
                wants_grad = rows.is_floating_point() and torch.is_grad_enabled()
                made[where, name] = rows.requires_grad_(wants_grad) if rows.is_floating_point() else rows.zero_()
            rows = made[where, name]
            rows = rows if part is None else rows.detach()[part]
            setattr(rows, _OF_EDGES, True)
            return rows

        return Reads(read, graph.frames[where])

    def batch(part: Tensor | None = None) -> _EdgeBatch:
        ids = torch.arange(_PROBE_EDGES) if part is None else part
        return _EdgeBatch({where: example(where, part) for where in graph.frames}, len(ids), lambda: (ids, ids))  # type: ignore[misc, arg-type]

    session, parts = graph.session, list(map(torch.tensor, _PARTS))
    with paused():
        whole_batch = batch()
        messages, params = captured_tensors(lambda: func(whole_batch), made.values(), EdgeCalls(session, draws, None))
        _check_messages(session, func, messages, _PROBE_EDGES)
        with torch.no_grad(), EdgeCalls(session, draws, None):
            of_parts = [func(batch(part)) for part in parts]
    for (name, value), (part, of_part) in product(messages.items(), zip(parts, of_parts, strict=True)):
        other = of_part.get(name) if isinstance(of_part, Mapping) else None
        if not isinstance(other, Tensor) or not is_close(value.detach()[part], other):
            raise session.wrong(
                f"The message '{name}' of an edge depends on other edges, or is drawn at random: it is another number for some "
                "edges than for all.",
                place=session.place_of(func),
                allowed="what is computed of each edge's own rows; dropout, which is drawn by both ends",
                hint="means, norms and softmax over rows of nodes or edges before update_all are over those of all workers",
            )
    fields = tuple((where, name, _field(graph, where, name)) for where, name in made)

    def compute(run: EdgeRun, rows: dict[tuple[str, str], Tensor]) -> Any:
        fields = {where: {name: t for (place, name), t in rows.items() if place == where} for where in "uve"}
        batch = _EdgeBatch(fields, len(run), lambda: (run.src_ids, run.dst_ids))  # type: ignore[arg-type]
        with EdgeCalls(session, draws, run):
            messages = func(batch)
        _check_messages(session, func, messages, len(run))
        return messages

    whole = Written((), torch.float32, compute, fields, params)
    return {name: Item(tuple(value.shape[1:]), value.dtype, whole, name) for name, value in messages.items()}


def _check_messages(session: Session, func: Callable[..., Any], messages: Any, edges: int) -> None:
    """Raise ``ConfigError`` unless a message function gave a mapping of tensors with a row per edge."""
    place = session.place_of(func)
    if not isinstance(messages, Mapping) or not messages:
        raise session.wrong(
            "A message function gives no messages.",
            given=f"a {type(messages).__name__}",
            place=place,
            allowed="a mapping from names to tensors [edges, ...]",
        )
    for name, value in messages.items():
        if not isinstance(value, Tensor):
            raise session.wrong(f"The message '{name}' is no tensor.", given=f"a {type(value).__name__}", place=place)
        if not value.dim() or len(value) != edges:
            raise session.wrong(
                f"The message '{name}' has not one row per edge.",
                place=place,
                given=f"shape {tuple(value.shape)} for {edges} edges",
                hint="messages are [edges, ...], computed edge by edge",
            )


class EdgeCalls(TorchFunctionMode):
    """Draws the dropouts of a user's function of edges by the edges' ends.

    Args:
        draws: of this function so far, by the number of the dropout.
        run: the edges; None for made-up ones.
    """

    def __init__(self, session: Session, draws: dict[int, Draw], run: EdgeRun | None) -> None:
        super().__init__()
        self._session, self._draws, self._run = session, draws, run
        self._drops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "dropout" or name == "dropout_":
            return self._dropped(*args, **kwargs)
        if self._run is not None:
            return func(*args, **kwargs)
        given = tensors_of((args, kwargs))
        if name == "__get__" and not isinstance(told := func(*args, **kwargs), Tensor):  # a dtype, a shape
            return told
        if self._session.calls.group.world > 1 and any(mark_of(tensor) is not None for tensor in given):
            raise self._session.wrong(
                "A function of edges reads rows that are no field of its edges, of which a worker has some.",
                given=f"{func.__name__} of them",
                allowed="edges.src, edges.dst and edges.data; what is folded over rows before update_all",
            )
        of_edges = any(hasattr(tensor, _OF_EDGES) for tensor in given)
        if of_edges and (known := known_function(func)).reads and known.name != "__len__":
            raise self._session.wrong(
                "A function of edges reads numbers of some edges, which it is called with at a time.",
                given=f"'{known.name}'",
                allowed="torch.where for each edge; what is folded over rows before update_all",
            )
        out = func(*args, **kwargs)
        for tensor in tensors_of(out) if of_edges else ():
            setattr(tensor, _OF_EDGES, True)
        return out

    def _dropped(self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return values
        check_recomputed()
        if self._drops not in self._draws:
            self._draws[self._drops] = self._session.calls.edge_draw(p)
        draw = self._draws[self._drops]
        self._drops += 1
        dropped = values * draw.scale if self._run is None else draw_mask(self._run, values, draw)
        return values.copy_(dropped) if inplace else dropped


class _Captures(TorchFunctionMode):
    """Notes tensors with gradients that were there before the calls, in the order in which they were read."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Tensor] = {}
        self.captured: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_of((args, kwargs or {})):
            if tensor.requires_grad and id(tensor) not in self._known:
                self.captured[id(tensor)] = tensor
        result = func(*args, **(kwargs or {}))
        self._known.update((id(tensor), tensor) for tensor in tensors_of(result))  # held, so that its id stays its own
        return result


def captured_tensors(
    call: Callable[[], Any], fields: Iterable[Tensor], calls: TorchFunctionMode
) -> tuple[Any, tuple[Tensor, ...]]:
    """What ``call()`` gives, and the tensors with gradients that it reads beside ``fields``, leaves that are made while it
    runs. ``calls`` is entered around it."""
    captures = _Captures()
    with captures, calls:
        returned = call()
    mine = {id(tensor) for tensor in fields}
    params = [tensor for tensor in captures.captured.values() if id(tensor) not in mine]
    if not torch.is_grad_enabled():
        return returned, ()
    # Nodes are held: one that is not may be given the id of another.
    ends = [tensor.grad_fn for tensor in params if tensor.grad_fn is not None]
    seen = {id(end): end for end in ends}
    known = mine | {id(tensor) for tensor in params}
    todo: list[Any] = [tensor.grad_fn for tensor in tensors_of(returned) if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            known.add(id(leaf))
            params.append(leaf)
        todo += [before for before, _ in node.next_functions]
    return returned, tuple(params)
