"""What a layer of PyG's gets in place of ``edge_index``, and what becomes of it: tensors without numbers.

``edge_index`` is a tensor of shape [2, E] without memory: all its numbers are one, with stride 0. PyG runs as it is, and what
it does with such a tensor is noted (``lazy_calls.py``):

| PyG | here |
|---|---|
| ``edge_index[0]``, ``edge_index[1]`` | ``Ends``, [E]: the edges' sources, their destinations |
| ``x[ends]``, ``x.index_select(0, ends)`` | ``EdgeRows``, [E, ...]: an expression for each edge (``edge_fields.py``) |
| functions of ``EdgeRows`` that take each edge by itself | ``EdgeRows`` |
| ``zeros.scatter_add_(0, ends, rows)`` and its like | ``Folded``, [M, ...]: a fold over each node's edges, not computed yet |
| ``folded[ends]`` | ``EdgeRows``; exp(l - max(l)[ends]) / (sum of these)[ends] is a softmax, which is fused |
| anything else of ``Folded`` | the fold is computed, by one ``engine.aggregate``, and the function gets its rows |
| ``rows.new_zeros(...)`` | ``Filled``: a number in a shape, until somebody needs a table of it |
| ``edge_index[:, mask]`` | the edges where a condition holds (``edge_sets.py``) |

Only names of PyTorch's functions are known here, none of PyG's.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.edge_fields import EdgeTensor
from sargnn.modules.expressions import EDGE_COUNT, Call, Node, Where, map_values
from sargnn.modules.folds import Edges
from sargnn.modules.tag import FIRST_TOLD, Count, tagged

_ABOUT = frozenset(
    """dim ndimension ndim dtype device layout is_cuda is_sparse is_sparse_csr is_quantized is_mkldnn is_meta is_nested is_leaf
    requires_grad grad_fn is_floating_point is_complex is_contiguous stride element_size get_device __hash__ is_cpu is_xla
    is_mps is_vulkan names output_nr _version is_inference is_conj is_neg grad retain_grad register_hook""".split()
)
"""Questions that a tensor without numbers answers by itself."""


class Lazy(Tensor):
    """A tensor without numbers. ``StockCalls`` answers what is done with it; what passes that by is answered here."""

    edges: Edges

    @staticmethod
    def blank(made: type[Any], shape: Any, dtype: torch.dtype, **attributes: Any) -> Any:
        """A tensor of a kind. All its numbers are one that shows, or fails, where something reads it all the same."""
        grad = dtype.is_floating_point and made in (EdgeRows, Folded) and torch.is_grad_enabled()
        with torch._C.DisableTorchFunction():
            number = torch.nan if dtype.is_floating_point else 0 if dtype == torch.bool else torch.iinfo(dtype).min
            nobody = torch.full((), number, dtype=dtype).requires_grad_(grad)
            lazy = nobody.expand(tuple(operator.index(size) for size in shape)).as_subclass(made)
        for name, value in attributes.items():
            setattr(lazy, name, value)
        return lazy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name == "__get__":
            name = func.__self__.__name__
            if name == "shape":
                return shape_of(args[0])
        if name == "size":
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return shape_of(args[0]) if dim is None else shape_of(args[0])[dim]
        if name == "__len__":
            return operator.index(shape_of(args[0])[0])
        if name in ("numel", "nelement"):
            return _numel(args[0])
        if isinstance(args[0], Largest) and name in ("__int__", "__index__", "item", "__float__"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        if name in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        given = map_values((args, kwargs), values)
        for value in flat(given):
            if isinstance(value, Lazy):
                raise value.edges.session.wrong(f"'{name.strip('_')}' reads the numbers of the edges' nodes.")
        return func(*given[0], **given[1])

    def __deepcopy__(self, memo: Any) -> Any:
        """Itself: nothing of it changes but what a pass notes."""
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={tuple(operator.index(size) for size in shape_of(self))})"


class EdgeIndex(Lazy):
    """int64 [2, E]. flipped: sources and destinations are exchanged."""

    flipped: bool
    first: tuple[int, int] = (0, 0)
    """What was added to the numbers of its two rows: where their nodes begin in a table of several types'."""

    def side(self, row: int) -> Where:
        """Which ends a row of it holds."""
        return "v" if (row % 2) ^ self.flipped else "u"


class Ends(Lazy):
    """int64 [E, 1, ...], expanded or not. side: ``u`` sources, ``v`` destinations; first: what was added to their numbers."""

    side: Where
    first: int = 0


class EdgeRows(Lazy):
    """[E, ...]. field: the expression; what is written to it in place is a new expression."""

    field: EdgeTensor


class Filled(Lazy):
    """A table with one number in every place.

    Attributes:
        number: that number.
        edges: whose rows it has; None: no edges'.
        became: what was written to it in place; None: nothing was.
    """

    number: float
    edges: Edges | None  # type: ignore[assignment]
    became: Any = None


class Folded(Lazy):
    """[M, ...]. fold: not computed yet."""

    fold: Fold


class Joined(Lazy):
    """[E, ...], of an index [2, E], of several sets of edges (``joined.py``).

    Attributes:
        parts: of each set a lazy tensor, or a tensor whose one row is that of all its edges.
    """

    parts: tuple[Any, ...]


class JoinedFolded(Lazy):
    """[M, ...]. fold: over the edges of several sets (``joined.JoinedFold``)."""

    fold: Any


class Largest(Lazy):
    """int64 []. The largest number of a node among the edges' ends; as a Python number it is one that nothing else has, and
    ``StockCalls.told`` knows what one more is: how many nodes there are.

    Attributes:
        sides: whose ends: ``u``, ``v`` or both.
    """

    sides: str

    @classmethod
    def of(cls, edges: Edges, sides: str) -> Largest:
        count = edges.number_of_dst_nodes() if sides == "v" else edges.number_of_src_nodes()
        told = edges.session.calls.told
        number = next((number for number, known in told.items() if known.of == count.of), FIRST_TOLD + 2 * len(told) + 1)
        told[number] = count
        with torch._C.DisableTorchFunction():
            largest: Largest = torch.tensor(number - 1).as_subclass(cls)
        largest.edges, largest.sides = edges, sides
        return largest

    def value(self) -> Tensor:
        """The number; all workers must ask together."""
        plan, schema = self.edges.plan, self.edges.plan.schema
        largest = torch.tensor(-1)
        for side, ids in zip("uv", plan.edge_ends(), strict=True):
            if side in self.sides and len(ids):
                rows = self.edges.sources if side == "u" else self.edges.destinations
                largest = torch.maximum(largest, ids.max() - schema.offsets[max(rows.type, 0)])
        return torch.stack(self.edges.session.engine.group.gather(largest)).amax()


class Fold:
    """A fold over the edges into each node, computed when somebody asks for its rows.

    Args:
        edges: which edges.
        kind: ``sum``, ``mean``, ``max``, ``min`` or ``mul``; ``count``: the number of edges.
        node: what is folded; None of a count.
        dtype: of the rows.
        origin: the expression that ``node`` is of the reversed edges; ``node`` itself if not given.
    """

    def __init__(self, edges: Edges, kind: str, node: Node | None, dtype: torch.dtype, origin: Node | None = None) -> None:
        self.edges, self.kind, self.node, self.dtype = edges, kind, node, dtype
        self.origin = node if origin is None else origin
        self.at_least = 0
        self.shape: tuple[int, ...] = () if node is None else node.shape
        self._rows: Tensor | None = None
        self._tracked = torch.is_grad_enabled()

    @property
    def is_computed(self) -> bool:
        return self._rows is not None

    def rows(self) -> Tensor:
        """[M, ...]; all workers must ask together."""
        if self._rows is None and self.kind == "count":
            degrees = self.edges.plan.in_degrees.clamp(min=self.at_least).to(self.dtype)
            self._rows = tagged(degrees.view(-1, *[1] * len(self.shape)).expand(-1, *self.shape), self.edges.destinations)
        elif self._rows is None:
            assert self.node is not None
            with torch.set_grad_enabled(self._tracked and torch.is_grad_enabled()):
                self._rows = self.edges.folded(self.kind, self.node, f"{self.kind} over edges")
        assert self._rows is not None
        return self._rows

    def with_shape(self, shape: tuple[int, ...], at_least: int | None = None) -> Fold:
        """A count with further dimensions, or clamped."""
        other = Fold(self.edges, self.kind, self.node, self.dtype)
        other.shape, other.at_least = shape, self.at_least if at_least is None else at_least
        return other


class EdgeCount(Count):
    """The number of edges, which knows the edges."""

    edges: Edges

    @classmethod
    def from_edges(cls, edges: Edges) -> EdgeCount:
        count = edges.num_edges()
        made = cls(operator.index(count), count.total, count.kind, count.rows, count.of)
        made.edges = edges
        return made

    def __sub__(self, other: Any) -> Any:
        """Of what is left of the edges without a hop: those of a layer."""
        return EdgeCount.from_edges(other.edges) if isinstance(other, Hop) else super().__sub__(other)


class Hop(int):
    """What ``trim_to_layer`` takes from the number of edges. edges: those that are left, a layer's."""

    edges: Edges

    @classmethod
    def to(cls, edges: Edges) -> Hop:
        made = cls(0)
        made.edges = edges
        return made


def edge_index(edges: Edges) -> EdgeIndex:
    """The index of a layer's edges."""
    lazy: EdgeIndex = Lazy.blank(EdgeIndex, (2, edges.plan.num_edges), torch.int64, edges=edges, flipped=False)
    return lazy


def ends_of(edges: Edges, side: Where) -> Ends:
    """The edges' sources or destinations."""
    lazy: Ends = Lazy.blank(Ends, (edges.plan.num_edges,), torch.int64, edges=edges, side=side)
    return lazy


def rows_of_edges(field: EdgeTensor) -> EdgeRows:
    """A field of edges as PyG's layers see it."""
    edges = field.edges
    rows: EdgeRows = Lazy.blank(EdgeRows, (edges.plan.num_edges, *field.node.shape), field.dtype, edges=edges)
    rows.field = field
    return rows


def filled(shape: Any, dtype: torch.dtype, number: float, edges: Edges | None = None) -> Filled:
    """A table with one number in every place."""
    lazy: Filled = Lazy.blank(Filled, shape, dtype, number=number, edges=edges)
    return lazy


def folded(fold: Fold) -> Folded:
    """The rows of a fold."""
    lazy: Folded = Lazy.blank(Folded, (fold.edges.plan.num_out, *fold.shape), fold.dtype, edges=fold.edges)
    lazy.fold = fold
    return lazy


def shape_of(lazy: Any) -> torch.Size:
    """The shape, in which the number of edges is a count that knows them."""
    with torch._C.DisableTorchFunction():
        shape = tuple(Tensor.size(lazy))
    if isinstance(lazy, JoinedFolded):
        return torch.Size(shape)
    if isinstance(lazy, Joined):
        count = sum(EdgeCount.from_edges(part.edges) for part in lazy.parts if isinstance(part, Lazy))
        return torch.Size((2, count) if isinstance(lazy.parts[0], EdgeIndex) else (count, *shape[1:]))
    if isinstance(lazy, EdgeIndex):
        return torch.Size((2, EdgeCount.from_edges(lazy.edges)))
    if isinstance(lazy, Folded):
        return torch.Size((lazy.edges.number_of_dst_nodes(), *shape[1:]))
    if lazy.edges is not None:
        return torch.Size((EdgeCount.from_edges(lazy.edges), *shape[1:]))
    return torch.Size(shape)


def _numel(lazy: Any) -> Any:
    shape = shape_of(lazy)
    return math.prod(shape)


def values(value: Any) -> Any:
    """What stands for a lazy tensor where a function is called: an edge field, or numbers."""
    if isinstance(value, EdgeRows):
        return value.field
    if isinstance(value, (Folded, JoinedFolded)):
        return value.fold.rows()
    if isinstance(value, Largest):
        return value.value()
    if isinstance(value, Filled):
        if value.became is not None:
            return values(value.became)
        if value.edges is not None:
            return constant_field(value)
        with torch._C.DisableTorchFunction():
            return torch.full(tuple(Tensor.size(value)), value.number, dtype=value.dtype)
    return value


def constant_field(value: Filled, edges: Edges | None = None) -> EdgeTensor:
    """The same number for each edge, as an expression."""
    edges = edges or value.edges
    assert edges is not None
    with torch._C.DisableTorchFunction():
        shape, dtype = tuple(Tensor.size(value))[1:], value.dtype
    return EdgeTensor(edges, Call(shape, dtype, torch.full, ((EDGE_COUNT, *shape), value.number), {"dtype": dtype}))


def flat(arguments: Any) -> list[Any]:
    """All values in a nest of arguments."""
    listed: list[Any] = []
    map_values(arguments, listed.append)
    return listed


Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""(PyTorch's function, its arguments, its keywords) to a result, or ``NotImplemented``."""


def function_name(func: Any) -> str:
    """A function's plain name."""
    return str(getattr(func, "__name__", "")).strip("_")
