"""Stand-ins: tensors without numbers, which a layer gets in place of ``edge_index`` and of all that has a row for each edge.

``edge_index`` is a tensor of shape [2, E] without memory: all its numbers are one, with stride 0. A layer of PyG's runs as it
is, and what it does with such a tensor is noted (``lazy_calls.py``). What edges of DGL's graphs carry is a stand-in, too.

| PyG | here |
|---|---|
| ``edge_index[0]``, ``edge_index[1]`` | ``Ends``, [E]: the edges' sources, their destinations |
| ``x[ends]``, ``x.index_select(0, ends)`` | ``EdgeRows``, [E, ...]: an expression for each edge |
| functions of ``EdgeRows`` that take each edge by itself | ``EdgeRows`` |
| ``zeros.scatter_add_(0, ends, rows)`` and its like | ``Folded``, [M, ...]: a fold over each node's edges, not computed yet |
| ``folded[ends]`` | ``EdgeRows``; exp(l - max(l)[ends]) / (sum of these)[ends] is a softmax, which is fused |
| anything else of ``Folded`` | the fold is computed, by one ``engine.aggregate``, and the function gets its rows |
| ``rows.new_zeros(...)`` | ``Filled``: a number in a shape, until somebody needs a table of it |
| ``edge_index[:, mask]`` | the edges where a condition holds (``edge_sets.py``) |

An expression is computed run by run, as a part of the messages that a fold reads: scores and weights of all edges, held as
tables, would be most of a layer's memory, and a score needs rows of other workers. What takes not each edge by itself gets a
table [E, ...] of this worker's edges, which stays with the destinations' owner.

Only names of PyTorch's functions are known here, none of PyG's, nor how a fold is computed: that is ``folds.Edges``.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sargnn.errors import ConfigError
from sargnn.modules.expressions import (
    EDGE_COUNT,
    Call,
    Column,
    Dropped,
    Field,
    Node,
    Where,
    flat,
    map_values,
    without_gradient,
)
from sargnn.modules.folds import Edges
from sargnn.modules.patterns import unshaped
from sargnn.modules.pending_fold import Fold
from sargnn.modules.tag import FIRST_TOLD, Count, Rows, is_convolutions_call, is_librarys_call, own_of, user_line
from sargnn.rng import Draw

_ABOUT = frozenset(
    """dim ndimension ndim dtype device layout is_cuda is_sparse is_sparse_csr is_quantized is_mkldnn is_meta is_nested is_leaf
    requires_grad grad_fn is_floating_point is_complex is_contiguous stride element_size get_device __hash__ is_cpu is_xla
    is_mps is_vulkan names output_nr _version is_inference is_conj is_neg""".split()
)
"""Questions that a tensor without numbers answers by itself."""


_NO_FLOAT = 1 << 1100
"""Numbers of nodes that ``int(edge_index.max())`` tells libraries begin here: Python makes no float of them."""


class Lazy(Tensor):
    """A tensor without numbers. ``StockCalls`` answers what is done with it; what passes that by is answered here.

    Attributes:
        edges: which edges it is of; None: of none.
        sharers: who would see what is written to it: itself and its views, as weak references.
    """

    edges: Edges
    sharers: list[weakref.ref[Lazy]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name == "__get__":
            name = func.__self__.__name__
            if name == "shape":
                return args[0].sizes()
        if name == "size":
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return args[0].sizes() if dim is None else args[0].sizes()[dim]
        if name == "__len__":
            return own_of(args[0].sizes()[0])
        if name in ("numel", "nelement"):
            return math.prod(args[0].sizes())
        if isinstance(args[0], Largest) and name in ("__int__", "item"):
            return args[0].number()
        if name in _ABOUT or (isinstance(args[0], Largest) and name == "__index__"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        given = map_values((args, kwargs), numbers)
        for value in flat(given):
            if isinstance(value, Lazy):
                raise value.edges.session.wrong(f"'{name.strip('_')}' reads the numbers of the edges' nodes.")
        return func(*given[0], **given[1])

    def sizes(self) -> Any:
        """The shape, in which the number of edges is a count that knows them."""
        return torch.Size(own_shape(self))

    def __deepcopy__(self, memo: Any) -> Any:
        """Itself, where nothing of it changes but what a pass notes."""
        if isinstance(self, EdgeIndex):
            return edge_index(self.edges, flipped=self.flipped, first=self.first)
        if isinstance(self, Ends):
            return blank(Ends, own_shape(self), torch.int64, edges=self.edges, side=self.side, begin=[self.first])
        return edge_rows(self.edges, self.node) if isinstance(self, EdgeRows) else self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={own_shape(self)})"


def blank(made: type[Any], shape: Any, dtype: torch.dtype, *, grad: bool = False, **attributes: Any) -> Any:
    """A tensor of a kind. All its numbers are one that shows, or fails, where something reads it all the same."""
    with torch._C.DisableTorchFunction():
        number = torch.nan if dtype.is_floating_point else 0 if dtype == torch.bool else torch.iinfo(dtype).min
        nobody = torch.full((), number, dtype=dtype, device=attributes.pop("device", None))
        nobody.requires_grad_(grad and dtype.is_floating_point and torch.is_grad_enabled())
        lazy = nobody.expand(tuple(map(own_of, shape))).as_subclass(made)
    for name, value in attributes.items():
        setattr(lazy, name, value)
    lazy.sharers = [weakref.ref(lazy)]
    return lazy


class _OfEdges(Lazy):
    """Whose first dimension is that of the edges."""

    def sizes(self) -> Any:
        return torch.Size((EdgeCount.from_edges(self.edges), *own_shape(self)[1:]))


class EdgeIndex(Lazy):
    """int64 [2, E]. flipped: sources and destinations are exchanged; begins: of each row a list of one, what was added to its
    numbers: where their nodes begin in a table of several types'. Views of a row have the same list.
    """

    flipped: bool
    begins: tuple[list[Any], list[Any]]

    @property
    def first(self) -> tuple[Any, Any]:
        return self.begins[0][0], self.begins[1][0]

    def sizes(self) -> Any:
        return torch.Size((2, EdgeCount.from_edges(self.edges)))

    def side(self, row: int) -> Where:
        """Which ends a row of it holds."""
        return "v" if (row % 2) ^ self.flipped else "u"


class Ends(_OfEdges):
    """int64 [E, 1, ...], expanded or not. side: ``u`` sources, ``v`` destinations; begin: as of ``EdgeIndex``."""

    side: Where
    begin: list[Any]

    @property
    def first(self) -> Any:
        return self.begin[0]

    @property
    def rows(self) -> Rows:
        """Whose numbers they are."""
        return self.edges.sources if self.side == "u" else self.edges.destinations


def is_moved(value: Any) -> bool:
    """Whether something was added to numbers of edges' nodes: the same answer on all workers."""
    first = value.first if isinstance(value, EdgeIndex) else (value.first,) if isinstance(value, Ends) else ()
    return any(number != 0 for number in first)


class EdgeRows(_OfEdges):
    """[E, ...]: an expression for each edge of this worker. What is written to it in place is a new expression."""

    _value: Tensor | None
    _node: Node
    _tracked: bool

    @property
    def node(self) -> Node:
        """The expression. What was noted under ``torch.no_grad()`` is constant to what follows it, though computed later."""
        if not self._tracked and torch.is_grad_enabled():
            self._node, self._tracked = without_gradient(self._node), True
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node, self._tracked, self._value = node, torch.is_grad_enabled(), None

    @property
    def number(self) -> Any:
        """The number that every edge has; None: they are not known to have one."""
        node = unshaped(self._node)
        return node.args[1] if isinstance(node, Call) and node.func is torch.full else None

    def dropped(self, draw: Draw) -> EdgeRows:
        """The values dropped by the edges' original ids."""
        return edge_rows(self.edges, Dropped(self.node.shape, self.node.dtype, self.node, draw))

    def value(self) -> Tensor:
        """The values of all edges of this worker, [E, ...]; computed once. All workers must ask together."""
        if self._value is None:
            with torch.set_grad_enabled(self._tracked):
                value = self.edges.edge_values(self._node)
                self.node = Field(value.shape[1:], value.dtype, "e", value)
            self._value = value
        return self._value


class Filled(Lazy):
    """A table with one number in every place, of no edges.

    Attributes:
        number: that number.
        up_to: how many rows it has, where that is told by the largest of the nodes at some edges' ends.
        became: what was written to it in place; None: nothing was.
    """

    number: float
    edges: Edges | None  # type: ignore[assignment]
    up_to: UpTo | None = None
    became: Any = None


class Folded(Lazy):
    """[M, ...]. fold: not computed yet."""

    fold: Fold

    def sizes(self) -> Any:
        self.fold.check()
        return torch.Size((self.edges.number_of_dst_nodes(), *own_shape(self)[1:]))


class Joined(Lazy):
    """[E, ...], of an index [2, E], of several sets of edges (``joined.py``).

    Attributes:
        parts: of each set a lazy tensor, or a tensor whose one row is that of all its edges.
    """

    parts: tuple[Any, ...]

    def sizes(self) -> Any:
        count = sum(EdgeCount.from_edges(part.edges) for part in self.parts if isinstance(part, Lazy))
        return torch.Size((2, count) if isinstance(self.parts[0], EdgeIndex) else (count, *own_shape(self)[1:]))


class JoinedFolded(Folded):
    """[M, ...]. fold: over the edges of several sets (``joined.JoinedFold``)."""

    fold: Any

    def sizes(self) -> Any:
        return torch.Size(own_shape(self))


class Largest(Lazy):
    """int64 []. The largest number of a node among the edges' ends. As a Python number libraries get one that nothing else has,
    and ``StockCalls.told`` knows what one more is: how many nodes there are.

    Attributes:
        sides: whose ends: ``u``, ``v`` or both.
    """

    sides: str

    @classmethod
    def of(cls, edges: Edges, sides: str) -> Largest:
        count = edges.number_of_dst_nodes() if sides == "v" else edges.number_of_src_nodes()
        told = edges.session.calls.told
        number = next((number for number, known in told.items() if known.of == count.of), FIRST_TOLD + 2 * len(told) + 1)
        told[number] = up_to = UpTo(count.own, count.total, count.kind, count.rows, count.of)
        with torch._C.DisableTorchFunction():
            largest: Largest = torch.tensor(number - 1).as_subclass(cls)
        largest.edges, largest.sides = edges, sides
        up_to.largest = largest
        return largest

    def number(self) -> int:
        """As a Python number. One for libraries has no half of it and the like, which nobody would know again: an
        ``OverflowError``."""
        if not is_librarys_call():
            number = int(self.value())
            self.edges.session.calls.sizes.add(number + 1)
            return number
        with torch._C.DisableTorchFunction():
            index = int(self)
        told = self.edges.session.calls.told
        told[_NO_FLOAT + index + 1] = up_to = told[index + 1]
        if isinstance(up_to, UpTo):
            up_to.is_trusted = is_convolutions_call()
        return _NO_FLOAT + index

    def value(self) -> Tensor:
        """The number; all workers must ask together."""
        offsets, largest = self.edges.session.calls.places.schema.offsets, torch.tensor(-1)
        for side, ids in zip("uv", self.edges.plan.edge_ends(), strict=True):
            if side in self.sides and len(ids):
                rows = self.edges.sources if side == "u" else self.edges.destinations
                largest = torch.maximum(largest, ids.max() - offsets[max(rows.type, 0)])
        return torch.stack(self.edges.session.engine.group.gather(largest)).amax()


class EdgeCount(Count):
    """The number of edges, which knows the edges."""

    edges: Edges

    @classmethod
    def from_edges(cls, edges: Edges) -> EdgeCount:
        count = edges.num_edges()
        made = cls(count.own, count.total, count.kind, count.rows, count.of)
        made.edges = edges
        return made

    def __sub__(self, other: Any) -> Any:
        """Of what is left of the edges without a hop: those of a layer."""
        return EdgeCount.from_edges(other.edges) if isinstance(other, Hop) else super().__sub__(other)


class UpTo(Count):
    """How many nodes there are where a library takes them to end with the largest of those at some edges' ends."""

    largest: Largest
    is_trusted = False
    """PyG's convolutions read such a table where edges end, and nowhere else."""

    def check(self) -> None:
        """Raise ``ConfigError`` unless that is the last node; where not all nodes are in the batch, it is taken to be."""
        if self.is_trusted:
            return
        edges, of = self.largest.edges, self.rows.type if self.rows is not None else -1
        schema = edges.session.calls.places.schema
        whole = schema.num_nodes if of < 0 else schema.count(of)
        if self.total == whole and int(self.largest.value()) + 1 < whole:
            raise edges.session.wrong(
                "Without a number of nodes there are rows up to the last node that has edges, not of all nodes.",
                given=f"a table of {int(self.largest.value()) + 1} rows for {whole} nodes",
                allowed="dim_size=x.size(0) or num_nodes=x.size(0), as the function calls it",
            )


class Hop(int):
    """What ``trim_to_layer`` takes from the number of edges. edges: those that are left, a layer's."""

    edges: Edges

    @classmethod
    def to(cls, edges: Edges) -> Hop:
        made = cls(0)
        made.edges = edges
        return made


def edge_index(edges: Edges, *, flipped: bool = False, first: tuple[Any, Any] = (0, 0)) -> EdgeIndex:
    """The index of a layer's edges."""
    begins = [first[0]], [first[1]]
    lazy: EdgeIndex = blank(EdgeIndex, (2, edges.plan.num_edges), torch.int64, edges=edges, flipped=flipped, begins=begins)
    return lazy


def ends_of(edges: Edges, side: Where, begin: list[Any] | None = None) -> Ends:
    """The edges' sources or destinations."""
    begin = [0] if begin is None else begin
    lazy: Ends = blank(Ends, (edges.plan.num_edges,), torch.int64, edges=edges, side=side, begin=begin)
    return lazy


def edge_rows(edges: Edges, node: Node) -> EdgeRows:
    """An expression for each edge."""
    known = isinstance(node, Column) or (isinstance(node, Call) and node.func is torch.full)
    grad = node.tensor.requires_grad if isinstance(node, Field) and node.where == "e" else not known
    shape = (edges.num_edges(), *node.shape)
    lazy: EdgeRows = blank(EdgeRows, shape, node.dtype, grad=grad, device=edges.device, edges=edges, node=node)
    return lazy


def same_number(edges: Edges, shape: tuple[int, ...], dtype: torch.dtype, number: Any) -> EdgeRows:
    """One number in every place of each edge's row."""
    number = torch.tensor(number, dtype=dtype).item()
    return edge_rows(edges, Call(shape, dtype, torch.full, ((EDGE_COUNT, *shape), number), {"dtype": dtype}))


def filled(shape: Any, dtype: torch.dtype, number: float) -> Any:
    """A table with one number in every place; of edges where its first size is their count."""
    if shape and isinstance(shape[0], EdgeCount):
        return same_number(shape[0].edges, tuple(map(own_of, shape[1:])), dtype, number)
    up_to = shape[0] if shape and isinstance(shape[0], UpTo) else None
    return blank(Filled, shape, dtype, number=number, edges=None, up_to=up_to)


def folded(fold: Fold) -> Folded:
    """The rows of a fold."""
    lazy: Folded = blank(Folded, (fold.edges.plan.num_out, *fold.shape), fold.dtype, grad=True, edges=fold.edges, fold=fold)
    return lazy


def own_shape(lazy: Any) -> tuple[int, ...]:
    """The shape in plain numbers."""
    with torch._C.DisableTorchFunction():
        return tuple(Tensor.size(lazy))


def values(value: Any) -> Any:
    """What stands for a lazy tensor where a function is called: an expression for each edge, or numbers."""
    if isinstance(value, Folded):
        value.fold.check()
        return value.fold.rows()
    if isinstance(value, Largest):
        return value.value()
    if isinstance(value, Filled):
        if value.became is not None:
            return values(value.became)
        with torch._C.DisableTorchFunction():
            return torch.full(tuple(Tensor.size(value)), value.number, dtype=value.dtype)
    return value


def numbers(value: Any) -> Any:
    """The same with a table [E, ...] for edges."""
    value = values(value)
    return value.value() if isinstance(value, EdgeRows) else value


def check_alone(target: Lazy, name: str) -> None:
    """Refuse to write to a tensor that another one shares its memory with: that one would not see it.

    Raises:
        ConfigError: there is another one.
    """
    if sum(sharer() is not None for sharer in target.sharers) > 1:
        raise ConfigError(
            "A module may not write to values of edges that are known in two shapes, as x and x.view(...)",
            given=f"{user_line()}: {name}",
            allowed="operations that give a new tensor",
            hint="use the operation that is not in place, or write to x.clone()",
        )


def share(view: Any, base: Lazy) -> Any:
    """``view`` itself, noted to have the memory of ``base``."""
    if isinstance(view, Lazy) and view.sharers is not base.sharers:
        base.sharers[:] = [sharer for sharer in (*base.sharers, *view.sharers) if sharer() is not None]
        for sharer in view.sharers:
            if (other := sharer()) is not None:
                other.sharers = base.sharers
    return view


Handler = Callable[..., Any]
"""(PyTorch's function, its arguments by their names) to a result, or ``NotImplemented``."""
