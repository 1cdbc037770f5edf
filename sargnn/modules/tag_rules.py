"""Which tag a function's result gets, told by the function's name: where the rows of its arguments are in it.

Reductions, transpositions, reshapes, joins, cuts, products and indices each have a rule. Any other function treats rows one by
one. Nothing here computes a result or knows who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.expressions import map_values
from sargnn.modules.tag import Mark, mark_of, set_mark

Marked = list[tuple[Tensor, Mark]]
_PART = "a part of them was taken"


@dataclass(slots=True)
class Call:
    """A call of a PyTorch function.

    Attributes:
        name: of the function, as PyTorch calls it; a property's own.
        func: the function.
        args, kwargs: its arguments.
        marked: the tensors with marks among the arguments, also in lists.
        is_temporary: nobody but the call knows its first argument.
    """

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marked: Marked
    is_temporary: bool = False

    def argument(self, at: int, *keys: str, default: Any = None) -> Any:
        """An argument by its keywords or its place."""
        for key in keys:
            if key in self.kwargs:
                return self.kwargs[key]
        return self.args[at] if len(self.args) > at else default

    def plain(self) -> Any:
        """What PyTorch itself gives."""
        return self.func(*self.args, **self.kwargs)


def of_last_layer(args: Any, kwargs: Any, marked: Marked) -> tuple[Any, Any, Marked]:
    """Arguments of which the rows of earlier layers are narrowed to those of the last one, which are the first of them."""
    of_nodes = [(mark, mark.rows) for _, mark in marked if mark.rows is not None and mark.rows.kind == "nodes"]
    if len({rows.level for _, rows in of_nodes}) < 2:
        return args, kwargs, marked
    last, to = max(of_nodes, key=lambda pair: pair[1].level)

    def narrowed(value: Any) -> Any:
        mark = mark_of(value)
        if mark is None or mark.rows is None or mark.rows == to:
            return value
        same = (mark.rows.kind, mark.rows.type) == (to.kind, to.type)
        if not same or mark.number < last.number or value.shape[mark.dim] != mark.number:
            return value
        return set_mark(value.narrow(mark.dim, 0, last.number), mark._replace(rows=to, number=last.number), shared=True)

    args, kwargs = map_values((args, kwargs), narrowed)
    return args, kwargs, marked_in(args, kwargs)


Rule = Callable[[Call, Tensor, int], Mark | None]
"""(the call, one of its results, its number among the results) to the result's mark."""


def marked_in(args: Iterable[Any], kwargs: dict[str, Any]) -> Marked:
    """The tensors with marks among arguments, also in lists."""
    marked: Marked = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, (list, tuple)):
            marked += [(tensor, mark) for tensor in argument if (mark := mark_of(tensor)) is not None]
        elif (mark := mark_of(argument)) is not None:
            marked.append((argument, mark))
    return marked


def reduced_dims(call: Call) -> list[int] | None:
    """The dimensions of the first argument that a reduction removes; None where it is none, but compares two tensors."""
    dim = call.argument(2 if call.name in _DIM_COMES_SECOND else 1, "dim", "axis")
    if isinstance(dim, Tensor) or isinstance(call.kwargs.get("other"), Tensor):
        return None
    ndim = call.args[0].dim()
    if dim is None or isinstance(dim, bool) or dim == ():
        return list(range(ndim))
    return [axis % ndim for axis in ([dim] if isinstance(dim, int) else dim)]


def row_index(call: Call, mark: Mark) -> tuple[Any, int]:
    """What ``__getitem__`` or ``index_select`` takes of the rows, and in which dimension of the result they are (-1: gone)."""
    tensor = call.args[0]
    if call.name == "index_select":
        along_rows = call.argument(1, "dim") % tensor.dim() == mark.dim
        return call.argument(2, "index") if along_rows else slice(None), mark.dim
    items = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    fill = tensor.dim() - sum(_consumes(item) for item in items)
    read = written = 0
    advanced = False
    for item in items:
        if item is None or item is True or item is False:
            written += 1
            continue
        if item is Ellipsis:
            if read <= mark.dim < read + fill:
                break
            read, written = read + fill, written + fill
            continue
        width = _consumes(item)
        if read <= mark.dim < read + width:
            return item, -1 if isinstance(item, int) else written
        read += width
        if isinstance(item, slice) or not (isinstance(item, int) or advanced):
            written += 1
            advanced = advanced or not isinstance(item, slice)
    return slice(None), written + mark.dim - read


def _consumes(item: Any) -> int:
    """How many dimensions an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def counts_up(item: Any) -> bool:
    """Whether an index is 0, 1, 2, ...: the first rows in their order."""
    index = torch.as_tensor(item)
    if index.dim() != 1 or index.dtype == torch.bool:
        return False
    return torch.equal(index, torch.arange(len(index), device=index.device, dtype=index.dtype))


def _unknown(out: Tensor, why: str) -> Mark | None:
    """The mark of rows that are no longer a type's rows in their order; None for a scalar."""
    return Mark(None, 0, out.shape[0], why) if out.dim() else None


def _merged(marks: list[Mark]) -> Mark:
    """The mark of what is made of rows that run along the same dimension of a result."""
    first = marks[0]
    for other in marks[1:]:
        if first.rows is None or other.rows is None:
            first = first if first.rows is None else other
        elif (first.rows.kind, first.rows.type) != (other.rows.kind, other.rows.type):
            return first._replace(rows=None, why="rows of two types were mixed")
        elif other.rows.level > first.rows.level:
            first = other
    return first


def _along(out: Tensor, marked: Marked, name: str, *, broadcast: bool = False) -> Mark | None:
    """The mark of a result whose dimensions are those of its arguments, or theirs aligned at the last one.

    Args:
        broadcast: they are aligned at the last one, whatever their lengths.
    """
    shape, marks = out.shape, []
    for tensor, mark in marked:
        at, length = mark.dim, tensor.shape[mark.dim]
        aligned = len(shape) - tensor.dim() + at
        for position in (aligned,) if broadcast else (at, aligned):
            if 0 <= position < len(shape) and shape[position] == length:
                marks.append(mark if position == at else mark._replace(dim=position))
                break
    if not marks:
        return _unknown(out, f"{name} made other rows of them")
    return _merged([mark for mark in marks if mark.dim == marks[0].dim])


def row_by_row(call: Call, out: Tensor, index: int) -> Mark | None:
    """The rule for functions that treat rows one by one."""
    return _along(out, call.marked, call.name)


def _broadcast(call: Call, out: Tensor, index: int) -> Mark | None:
    return _along(out, call.marked, call.name, broadcast=True)


def _none(call: Call, out: Tensor, index: int) -> Mark | None:
    return None


def _reduced(call: Call, out: Tensor, index: int) -> Mark | None:
    mark = mark_of(call.args[0]) if call.args else None
    dims = None if mark is None else reduced_dims(call)
    if mark is None or dims is None:
        return _along(out, call.marked, call.name)
    if mark.dim in dims:
        return None
    return mark if out.dim() == call.args[0].dim() else mark._replace(dim=mark.dim - sum(dim < mark.dim for dim in dims))


def _transposed(call: Call, out: Tensor, index: int) -> Mark | None:
    """Told by a small tensor whose dimensions differ in length."""
    tensor, mark = call.marked[0]
    probe = torch.empty(tuple(range(2, tensor.dim() + 2)))
    if call.name in ("T", "mT", "H", "mH"):
        moved = getattr(probe, call.name)
    else:
        kwargs = {key: value for key, value in call.kwargs.items() if key != "input"}
        moved = getattr(probe, call.name)(*call.args[1:], **kwargs)
    return mark._replace(dim=moved.shape.index(mark.dim + 2))


def _squeezed(call: Call, out: Tensor, index: int) -> Mark | None:
    """A worker's only row stays a row (``row_calls.py``)."""
    tensor, mark = call.marked[0]
    dim: Any = call.argument(1, "dim")
    if call.name == "unsqueeze":
        return mark._replace(dim=mark.dim + (dim % (tensor.dim() + 1) <= mark.dim))
    dims = range(tensor.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {axis % tensor.dim() for axis in dims if tensor.shape[axis] == 1}
    return mark._replace(dim=mark.dim - sum(axis < mark.dim for axis in gone))


def _reshaped(call: Call, out: Tensor, index: int) -> Mark | None:
    """Rows stay rows where the dimensions up to theirs stay, or where the rows of a first dimension fall into k parts each."""
    tensor, mark = call.marked[0]
    before, after = tuple(tensor.shape[: mark.dim]), tuple(out.shape)
    if after[: mark.dim] == before and len(after) > mark.dim:
        length, count = after[mark.dim], mark.number
        if length == count or (mark.dim == 0 and count and length and length % count == 0):
            return mark
    return _unknown(out, "they were merged with another dimension")


def _stacked(call: Call, out: Tensor, index: int) -> Mark | None:
    tensor = call.marked[0][0]
    if any(other.shape != tensor.shape for other, _ in call.marked):
        return _along(out, call.marked, call.name)
    mark = _along(tensor, call.marked, call.name)
    return mark and mark._replace(dim=mark.dim + (call.argument(1, "dim", default=0) % out.dim() <= mark.dim))


def _joined(call: Call, out: Tensor, index: int) -> Mark | None:
    if call.name in ("hstack", "column_stack"):
        at = 0 if call.name == "hstack" and call.marked[0][0].dim() == 1 else 1
    elif call.name in ("vstack", "row_stack", "dstack"):
        at = 0
    else:
        at = call.argument(1, "dim", "axis", default=0) % out.dim()
    if at != call.marked[0][1].dim or len(call.argument(0, "tensors", default=())) == 1:
        return _along(out, call.marked, call.name)
    types = {mark.rows and (mark.rows.kind, mark.rows.type) for _, mark in call.marked}
    what = "tables" if len(types) == 1 else "types"
    return Mark(None, at, out.shape[at], f"rows of several {what} were joined with {call.name}")


def _cut(call: Call, out: Tensor, index: int) -> Mark | None:
    tensor, mark = call.marked[0]
    removes, starts = call.name in ("unbind", "select"), call.name in ("narrow", "select")
    dim = call.argument(1 if starts or call.name == "unbind" else 2, "dim", default=0) % tensor.dim()
    if dim != mark.dim:
        return mark._replace(dim=mark.dim - 1) if removes and dim < mark.dim else mark
    if removes:
        return None
    if out.shape[dim] == tensor.shape[dim]:
        return mark
    if (call.argument(2, "start") == 0 if starts else index == 0) and mark.number == tensor.shape[dim]:
        return mark._replace(number=out.shape[dim])
    return Mark(None, dim, out.shape[dim], _PART)


def _multiplied(call: Call, out: Tensor, index: int) -> Mark | None:
    """Rows that are summed over are gone; the others stay where the product has them."""
    left, other = call.args[-2:] if len(call.args) >= 2 else (call.args[0], next(iter(call.kwargs.values())))
    if call.name == "__rmatmul__":
        left, other = other, left
    if (mark := mark_of(left)) is not None and mark.dim != left.dim() - 1:
        return mark if other.dim() == 1 else mark._replace(dim=mark.dim + out.dim() - left.dim())
    if (mark := mark_of(other)) is not None and other.dim() > 1 and mark.dim != other.dim() - 2:
        from_last = other.dim() - 1 - mark.dim
        return mark._replace(dim=out.dim() - 1 - max(from_last - (left.dim() == 1), 0))
    return None


def _einsum(call: Call, out: Tensor, index: int) -> Mark | None:
    given = call.args[1]
    tensors: Sequence[Any] = given if isinstance(given, (list, tuple)) else call.args[1:]
    equation = call.args[0].replace(" ", "") if isinstance(call.args[0], str) else "."
    if "." in equation or "->" not in equation:
        return _along(out, call.marked, call.name)
    terms, result = equation.split("->")
    kept: Marked = []
    for term, tensor in zip(terms.split(","), tensors, strict=False):
        if (mark := mark_of(tensor)) is not None and term[mark.dim] in result:
            kept.append((out, mark._replace(dim=result.index(term[mark.dim]))))
    return _along(out, kept, call.name) if kept else None


def is_contracted(call: Call, out: Any) -> bool:
    """Whether a product sums over rows: its result has none of them."""
    return isinstance(out, Tensor) and (_multiplied if call.name in _PRODUCTS else _einsum)(call, out, 0) is None


def pairs_rows(call: Call) -> bool:
    """Whether a function joins each row with all other rows, of which a worker has some alone."""
    if call.name in _PRODUCTS:
        left, other = call.args[-2:] if len(call.args) >= 2 else (None, None)
        if call.name == "__rmatmul__":
            left, other = other, left
        of_left, of_other = mark_of(left), mark_of(other)
        if of_left is None or of_other is None or left.dim() < 2:
            return False
        return of_left.dim == left.dim() - 2 and of_other.dim == other.dim() - 1
    if call.name == "einsum":
        kept = {letter for letter in _row_letters(call) if letter in call.args[0].split("->")[-1]}
        return len(kept) > 1
    at_rows = 0 if call.name == "multi_head_attention_forward" else -2
    return any(mark.rows is None or mark.dim == at_rows % tensor.dim() for tensor, mark in call.marked)


def _row_letters(call: Call) -> set[str]:
    """The letters of dimensions along which rows run in an equation of ``einsum``."""
    given = call.args[1] if len(call.args) > 1 else ()
    tensors: Sequence[Any] = given if isinstance(given, (list, tuple)) else call.args[1:]
    if not isinstance(call.args[0], str) or "." in call.args[0]:
        return set()
    terms = call.args[0].replace(" ", "").split("->")[0].split(",")
    return {term[mark.dim] for term, tensor in zip(terms, tensors, strict=False) if (mark := mark_of(tensor)) is not None}


def _repeated(call: Call, out: Tensor, index: int) -> Mark | None:
    tensor, mark = call.marked[0]
    if call.name == "repeat_interleave":
        dim = call.argument(2, "dim")
        same = dim is not None and dim % tensor.dim() != mark.dim
    else:
        times = call.args[1] if len(call.args) == 2 and not isinstance(call.args[1], int) else call.args[1:]
        from_last = tensor.dim() - mark.dim
        same = len(times) < from_last or times[-from_last] == 1
    return _broadcast(call, out, index) if same else _unknown(out, "they were repeated")


def _indexed(call: Call, out: Tensor, index: int) -> Mark | None:
    """The first rows of a type are rows of that type."""
    tensor, mark = call.args[0], mark_of(call.args[0])
    if mark is None:  # a parameter's rows, one for each of the rows that the index runs over
        return _along(out, call.marked, call.name)
    item, at = row_index(call, mark)
    if not 0 <= at < out.dim():
        return None
    if isinstance(item, slice):
        if out.shape[at] == tensor.shape[mark.dim] and item.step in (None, 1):
            return mark._replace(dim=at)
        first = item.start in (None, 0) and item.step in (None, 1)
    else:
        first = isinstance(item, (Tensor, list)) and mark_of(item) is None and counts_up(item)
    if first and mark.number == tensor.shape[mark.dim]:
        return mark._replace(dim=at, number=out.shape[at])
    return Mark(None, at, out.shape[at], _PART)


_DIM_COMES_SECOND = {"norm", "linalg_norm", "linalg_vector_norm", "quantile", "nanquantile", "kthvalue"}
_NAMES: dict[Rule, str] = {
    _reduced: "sum nansum mean nanmean prod max min amax amin aminmax argmax argmin any all std var std_mean var_mean norm "
    "linalg_norm linalg_vector_norm logsumexp median nanmedian mode quantile nanquantile kthvalue count_nonzero",
    _transposed: "transpose swapaxes swapdims t T mT H mH adjoint permute movedim moveaxis",
    _squeezed: "squeeze unsqueeze",
    _reshaped: "view reshape flatten unflatten view_as reshape_as ravel",
    _stacked: "stack",
    _joined: "cat concat concatenate hstack vstack dstack column_stack row_stack",
    _cut: "split chunk split_with_sizes tensor_split unsafe_split unsafe_chunk narrow unbind select",
    _multiplied: "matmul mm bmm mv dot vdot __matmul__ __rmatmul__",
    _einsum: "einsum",
    _indexed: "__getitem__ index_select",
    _repeated: "repeat tile repeat_interleave",
    _broadcast: "add sub mul div rsub true_divide floor_divide divide multiply subtract pow maximum minimum where eq ne lt le "
    "gt ge lerp addcmul addcdiv masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ "
    "__rdiv__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ logical_and logical_or remainder fmod "
    "atan2 expand",
    _none: "new_zeros new_ones new_empty new_full new_tensor bincount histc unique cov corrcoef",
}
_PRODUCTS = _NAMES[_multiplied].split()
CONTRACTIONS = (_multiplied, _einsum)
"""Rules of functions that may sum over rows."""
PAIRING = frozenset((*_PRODUCTS, "einsum", "cdist", "scaled_dot_product_attention", "multi_head_attention_forward"))
"""Functions that may join each row with all others."""
RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""By the function's name; of any other function ``row_by_row``."""
