"""What is computed for an edge, as an expression over fields of its source, its destination and itself.

An expression is built while a layer runs, without computing anything, and compiled into a function of a run of edges
(``engine.reducers.generic``) once somebody wants rows of it. Nothing here knows a graph, or who builds an expression.

Letters: N input rows, M output rows, E edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from sargnn.engine.reducers.base import Tensors
from sargnn.engine.reducers.folds import MessageFold
from sargnn.engine.reducers.generic import EdgeRun, Messages
from sargnn.errors import ConfigError
from sargnn.modules.tag import user_line
from sargnn.rng import Draw, edge_mask

Where = Literal["u", "v", "e"]
"""A field of the source, of the destination, of the edge itself."""
Value = Any
"""A tensor of a run, or several."""
Step = Callable[[EdgeRun, dict[int, Value]], Value]


class _EdgeCount:
    """Stands for the number of edges in an expression's arguments."""


@dataclass(frozen=True)
class _Use:
    """Stands for what another step gives."""

    step: Step


EDGE_COUNT = _EdgeCount()


@dataclass(frozen=True, eq=False)
class Node:
    """A part of an expression. ``shape``: of a row, without the edges' dimension."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Field(Node):
    """A field's rows.

    Attributes:
        tensor: [N, ...], [M, ...] or [E, ...].
        version: of the tensor's memory when it was read: an expression is of the numbers that it had then.
    """

    where: Where
    tensor: Tensor
    version: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", self.tensor._version)


@dataclass(frozen=True, eq=False)
class Column(Node):
    """What the graph's edges carry, read for the edges of a run: never a table of all of them, and without a gradient.

    ``name`` is one of ``EdgeBlock.columns``, which have it wherever the edges are, also where they are some of others.
    """

    name: str


@dataclass(frozen=True, eq=False)
class Call(Node):
    """A function of other nodes, tensors and values. ``func(*args, **kwargs)`` computes every edge from itself. ``versions``
    are those of its tensors' memory when it was noted."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self.versions_now())

    def versions_now(self) -> list[int]:
        return [value._version for value in flat((self.args, self.kwargs)) if isinstance(value, Tensor)]


@dataclass(frozen=True, eq=False)
class Item(Node):
    """One of several results of a call, or of a message function."""

    of: Any
    key: Any


@dataclass(frozen=True, eq=False)
class Written(Node):
    """What a message function of the user's gives: a mapping.

    Attributes:
        func: gets the run and its fields by place and name.
        fields: (where, name, expression) that it reads.
        params: tensors beside them whose gradients are wanted.
    """

    func: Callable[[EdgeRun, dict[tuple[str, str], Tensor]], Any]
    fields: tuple[tuple[Where, str, Node], ...]
    params: Tensors


@dataclass(frozen=True, eq=False)
class Dropped(Node):
    """Values dropped by the edges' original ids: [E, K, ...], one draw for each of the first K."""

    of: Node
    draw: Draw


@dataclass(frozen=True, eq=False)
class Softmax(Node):
    """Over the edges of each destination, among those that the expression is of."""

    logits: Node


class SoftmaxTotal(Protocol):
    """A softmax over the edges of several sets into the same rows."""

    def total(self, run: Any) -> Tensor:
        """[M, K], the logarithm of the sum of exp(logits) of each row; all workers must ask together. run: which rows."""


@dataclass(frozen=True, eq=False)
class SharedSoftmax(Node):
    """A set's share of a softmax over the edges of several sets: ``run`` is its destinations in it."""

    logits: Node
    group: SoftmaxTotal
    run: Any


class PendingFold(Protocol):
    """A fold over the edges into each node that is computed when somebody asks for its rows."""

    def rows(self) -> Tensor:
        """[M, ...]; all workers must ask together."""

    @property
    def writes(self) -> int:
        """How often somebody has written to these rows."""


@dataclass(frozen=True, eq=False)
class AtEnd(Node):
    """The rows of a fold, perhaps not computed yet, at the edges' ``u`` or ``v``. ``writes``: when they were read."""

    fold: PendingFold
    where: Where
    writes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "writes", self.fold.writes)


def _is_current(node: Node) -> bool:
    """Whether nobody has written to what a node reads since it was noted."""
    if isinstance(node, Field):
        return node.tensor._version == node.version
    if isinstance(node, AtEnd):
        return node.fold.writes == node.writes
    return not isinstance(node, Call) or node.versions == node.versions_now()


class Changer:
    """Changes expressions, each part once; what nothing changes in stays the same object.

    Raises ``ConfigError``: somebody has written to what an expression reads, since it was noted.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}

    def changed(self, value: Any) -> Any:
        """A node changed; anything else as it is."""
        if not isinstance(value, Node):
            return value
        if id(value) not in self._memo:
            if not _is_current(value):
                raise ConfigError(
                    "What edges have read was written to before what is made of it was computed",
                    given=user_line(),
                    allowed="operations that give new tensors",
                    hint="use the operation that is not in place, or let the edges read x.clone()",
                )
            self._memo[id(value)] = self.change(value)
        return self._memo[id(value)]

    def change(self, node: Node) -> Node:
        """The same with changed parts. Overrides change the node itself."""
        if isinstance(node, Softmax | SharedSoftmax):
            logits = self.changed(node.logits)
            return node if logits is node.logits else replace(node, logits=logits)
        if isinstance(node, Dropped | Item):
            of = self.changed(node.of)
            return node if of is node.of else replace(node, of=of)
        if isinstance(node, Written):
            fields = tuple((where, name, self.changed(of)) for where, name, of in node.fields)
            same = all(new[2] is old[2] for new, old in zip(fields, node.fields, strict=True))
            return node if same else replace(node, fields=fields)
        if isinstance(node, Call):
            changed = False

            def part(value: Any) -> Any:
                nonlocal changed
                new = self.changed(value)
                changed = changed or new is not value
                return new

            args, kwargs = map_values((node.args, node.kwargs), part)
            return replace(node, args=args, kwargs=kwargs) if changed else node
        return node


class Resolved(Changer):
    """Computes the folds that an expression reads."""

    def change(self, node: Node) -> Node:
        if isinstance(node, AtEnd):
            return Field(node.shape, node.dtype, node.where, node.fold.rows())
        return super().change(node)


def function_name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).strip("_")


def function_of(node: Any) -> str:
    """The plain name of the function that a node calls; empty for any other node."""
    return function_name(node.func) if isinstance(node, Call) else ""


def size(node: Node) -> int:
    """Columns of a row."""
    return math.prod(node.shape)


class _Learned(Changer):
    """Notes whether an expression that it goes through reads something with a gradient."""

    learned = False

    def changed(self, value: Any) -> Any:
        read = value.tensor if isinstance(value, Field) else value
        params = value.params if isinstance(value, Written) else ()
        has_gradient = any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in (read, *params))
        self.learned = self.learned or has_gradient or isinstance(value, AtEnd)  # a fold's rows may have one
        return super().changed(value)


def without_gradient(node: Node) -> Node:
    """The same values as constants; the node itself where nothing in it is learned."""
    reads = _Learned()
    reads.changed(node)
    constant = not (reads.learned and node.dtype.is_floating_point)
    return node if constant else Call(node.shape, node.dtype, torch.detach, (node,), {})


def map_values(values: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of tuples, lists and mappings with every value changed."""
    if isinstance(values, (tuple, list)):
        changed = [map_values(value, change) for value in values]
        return type(values)(changed) if type(values) in (tuple, list) else tuple(changed)
    if isinstance(values, dict):
        return {key: map_values(value, change) for key, value in values.items()}
    return change(values)


def flat(values: Any) -> list[Any]:
    """All values in such a nest."""
    listed: list[Any] = []
    map_values(values, listed.append)
    return listed


def draw_mask(run: EdgeRun, values: Tensor, draw: Draw) -> Tensor:
    """Values [E, K, ...] dropped, the others multiplied with 1 / (1 - p)."""
    heads = values.shape[1] if values.dim() > 1 else 1
    kept = edge_mask(run.src_ids, run.dst_ids, heads, draw).to(values.dtype).mul_(draw.scale)
    return values * kept.view(len(values), *values.shape[1:2], *[1] * (values.dim() - 2))


class Program:
    """Expressions compiled for runs of edges. Holds none of their fields, so that these are freed as the mode decides.

    ``outputs`` have no ``Softmax``; ``dtype``: of what travels.
    """

    def __init__(self, outputs: Sequence[Node], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._slots: dict[tuple[Where, int], int] = {}
        self._fields: dict[Where, list[Tensor]] = {"u": [], "v": [], "e": []}
        self._params: dict[int, Tensor] = {}
        self._steps: dict[int, Step] = {}
        self._keep: list[Node] = []
        self._width = 0
        self._outputs = [self._step(node) for node in outputs]
        self._keep.clear()

    def fields(self, where: Where) -> Tensors:
        """The fields that are read of the sources [N, F_t], destinations [M, F_t] or edges [E, F_t], flat, as ``encode``."""
        return tuple(encode(tensor, self._dtype) for tensor in self._fields[where])

    def messages(self, folds: tuple[MessageFold, ...]) -> Messages:
        """For the generic reducer; the program gives its fields away."""
        grads = {where: tuple(t.requires_grad for t in tensors) for where, tensors in self._fields.items()}
        self._fields = {"u": [], "v": [], "e": []}
        outputs = self._outputs

        def compute(run: EdgeRun) -> Tensors:
            memo: dict[int, Value] = {}
            return tuple(step(run, memo) for step in outputs)

        return Messages(compute, folds, grads["u"], grads["v"], grads["e"], max(self._width, 1), tuple(self._params.values()))

    def _step(self, node: Node) -> Step:
        if id(node) not in self._steps:
            self._keep.append(node)
            key, made = id(node), self._make(node)

            def memoised(run: EdgeRun, memo: dict[int, Value]) -> Value:
                if key not in memo:
                    memo[key] = made(run, memo)
                return memo[key]

            self._steps[key] = memoised
        return self._steps[id(node)]

    def _make(self, node: Node) -> Step:
        self._width += size(node)
        if isinstance(node, Field):
            return self._read(node.where, node.tensor)
        if isinstance(node, Column):
            return lambda run, memo: run.column(node.name, node.dtype)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Item):
            of, key = self._step(node.of), node.key
            return lambda run, memo: of(run, memo)[key]
        if isinstance(node, Dropped):
            rows, draw = self._step(node.of), node.draw
            return lambda run, memo: draw_mask(run, rows(run, memo), draw)
        assert isinstance(node, Written)
        for param in node.params:
            self._params[id(param)] = param
        reads = [((where, name), self._step(of)) for where, name, of in node.fields]
        self._width += 2 * sum(size(of) for *_, of in node.fields)
        func = node.func
        return lambda run, memo: func(run, {key: read(run, memo) for key, read in reads})

    def _read(self, where: Where, tensor: Tensor) -> Step:
        key = where, id(tensor)
        if key not in self._slots:
            self._slots[key] = len(self._fields[where])
            self._fields[where].append(tensor)
        slot, dtype, shape = self._slots[key], tensor.dtype, tuple(tensor.shape[1:])
        whole = tensor.is_floating_point()

        def read(run: EdgeRun, memo: dict[int, Value]) -> Tensor:
            rows = (run.sources if where == "u" else run.destinations if where == "v" else run.edges)[slot]
            return rows.view(len(run), *shape) if whole else decode(rows, dtype, shape)

        return read

    def _call(self, node: Call) -> Step:
        def compiled(value: Any) -> Any:
            if isinstance(value, Node):
                return _Use(self._step(value))
            if isinstance(value, Tensor) and value.requires_grad:
                self._params[id(value)] = value
            return value

        func, args, kwargs = node.func, map_values(node.args, compiled), map_values(node.kwargs, compiled)

        def call(run: EdgeRun, memo: dict[int, Value]) -> Value:
            def now(value: Any) -> Any:
                if value is EDGE_COUNT:
                    return len(run)
                return value.step(run, memo) if isinstance(value, _Use) else value

            return func(*map_values(args, now), **map_values(kwargs, now))

        return call


def encode(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A field's rows flat, [N, F], in the type that travels; numbers that are no fractions as their bits."""
    flat = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    if tensor.is_floating_point():
        return flat.to(dtype)
    numbers = flat.long().contiguous()
    return numbers.as_strided(numbers.shape, (numbers.shape[1], 1)).view(dtype)  # a single one may have any stride


def decode(rows: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The inverse of ``encode`` for such numbers: [E, *shape]."""
    return rows.contiguous().view(torch.int64).to(dtype).view(len(rows), *shape)
