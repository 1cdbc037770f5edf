"""Which mark a result gets, by the function's name: reductions, transpositions, reshapes, joins, cuts, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.indexing import PART, indexed
from sargnn.modules.marks import Mark, Marked, along, mark_of, unknown

Rule = Callable[[str, Tensor, int, tuple[Any, ...], dict[str, Any], Marked], Mark | None]
"""(name, a result, its number among the results, args, kwargs, marked arguments) to the result's mark."""


def reduced_dims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """The dimensions of ``args[0]`` that a reduction removes; None where it is no reduction, but compares two tensors."""
    at = 2 if name in _DIM_COMES_SECOND else 1
    dim = kwargs.get("dim", kwargs.get("axis", args[at] if len(args) > at else None))
    if isinstance(dim, Tensor) or isinstance(kwargs.get("other"), Tensor):
        return None
    ndim = args[0].dim()
    if dim is None or isinstance(dim, bool) or dim == ():
        return list(range(ndim))
    return [axis % ndim for axis in ([dim] if isinstance(dim, int) else dim)]


def _reduced(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    dims = reduced_dims(name, args, kwargs) if args else None
    mark = mark_of(args[0]) if args else None
    if dims is None or mark is None:
        return along(out, marked, name)
    if mark.dim in dims:
        return None
    return mark if out.dim() == args[0].dim() else mark._replace(dim=mark.dim - sum(dim < mark.dim for dim in dims))


def _transposed(
    name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked
) -> Mark | None:
    """Told by a small tensor whose dimensions differ in length."""
    tensor, mark = marked[0]
    probe = torch.empty(tuple(range(2, tensor.dim() + 2)))
    if name in ("T", "mT", "H", "mH"):
        moved = getattr(probe, name)
    else:
        moved = getattr(probe, name)(*args[1:], **{key: value for key, value in kwargs.items() if key != "input"})
    return mark._replace(dim=moved.shape.index(mark.dim + 2))


def _squeezed(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    tensor, mark = marked[0]
    dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if name == "unsqueeze":
        return mark._replace(dim=mark.dim + (dim % (tensor.dim() + 1) <= mark.dim))
    if dim is None:  # a worker's only row stays a row (``row_calls.py``)
        gone = [axis for axis in range(tensor.dim()) if axis != mark.dim and tensor.shape[axis] == 1]
        return mark._replace(dim=mark.dim - sum(axis < mark.dim for axis in gone))
    dims = [dim] if isinstance(dim, int) else dim
    gone = [axis % tensor.dim() for axis in dims if tensor.shape[axis] == 1 and axis % tensor.dim() != mark.dim]
    return mark._replace(dim=mark.dim - sum(axis < mark.dim for axis in gone))


def _reshaped(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    """Rows stay rows where the dimensions up to theirs stay, or where the rows of a first dimension fall into k parts each."""
    tensor, mark = marked[0]
    before, after = tuple(tensor.shape[: mark.dim]), tuple(out.shape)
    if after[: mark.dim] == before and len(after) > mark.dim:
        length, count = after[mark.dim], mark.number
        if length == count or (mark.dim == 0 and count and length and length % count == 0):
            return mark
    return unknown(out, "they were merged with another dimension")


def _stacked(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    mark = _same_shape(marked)
    if mark is None:
        return along(out, marked, name)
    at = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.dim()
    return mark._replace(dim=mark.dim + (at <= mark.dim))


def _same_shape(marked: Marked) -> Mark | None:
    """The merged mark of tensors of one shape; None where they differ."""
    tensor = marked[0][0]
    if any(other.shape != tensor.shape for other, _ in marked):
        return None
    return along(tensor, marked, "stack")


def _joined(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    tensors = args[0] if args else kwargs.get("tensors", ())
    if name in ("hstack", "column_stack"):
        at = 0 if name == "hstack" and marked[0][0].dim() == 1 else 1
    elif name in ("vstack", "row_stack", "dstack"):
        at = 0
    else:
        at = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0)) % out.dim()
    if at != marked[0][1].dim or len(tensors) == 1:
        return along(out, marked, name)
    types = {mark.rows and (mark.rows.kind, mark.rows.type) for _, mark in marked}
    what = "tables" if len(types) == 1 else "types"
    return Mark(None, at, out.shape[at], f"rows of several {what} were joined with {name}")


def _cut(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    tensor, mark = marked[0]
    removes, starts = name in ("unbind", "select"), name in ("narrow", "select")
    at = 1 if starts or name == "unbind" else 2  # of the dimension among the arguments
    dim = kwargs.get("dim", args[at] if len(args) > at else 0) % tensor.dim()
    if dim != mark.dim:
        return mark._replace(dim=mark.dim - 1) if removes and dim < mark.dim else mark
    if removes:
        return None
    if out.shape[dim] == tensor.shape[dim]:
        return mark
    first = (kwargs.get("start", args[2] if len(args) > 2 else None) == 0) if starts else index == 0
    if first and mark.number == tensor.shape[dim]:
        return mark._replace(number=out.shape[dim])
    return Mark(None, dim, out.shape[dim], PART)


def _multiplied(
    name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked
) -> Mark | None:
    """Rows that are summed over are gone; the others stay where the product has them."""
    left, other = args[-2:] if len(args) >= 2 else (args[0], next(iter(kwargs.values())))
    if name == "__rmatmul__":
        left, other = other, left
    if (mark := mark_of(left)) is not None and mark.dim != left.dim() - 1:
        return mark if other.dim() == 1 else mark._replace(dim=mark.dim + out.dim() - left.dim())
    if (mark := mark_of(other)) is not None and other.dim() > 1 and mark.dim != other.dim() - 2:
        from_last = other.dim() - 1 - mark.dim
        return mark._replace(dim=out.dim() - 1 - max(from_last - (left.dim() == 1), 0))
    return None


def _einsum(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    tensors: Sequence[Any] = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
    equation = args[0].replace(" ", "") if isinstance(args[0], str) else "."
    if "." in equation or "->" not in equation:
        return along(out, marked, name)
    terms, result = equation.split("->")
    kept: Marked = []
    for term, tensor in zip(terms.split(","), tensors, strict=False):
        if (mark := mark_of(tensor)) is not None and term[mark.dim] in result:
            kept.append((out, mark._replace(dim=result.index(term[mark.dim]))))
    return along(out, kept, name) if kept else None


def _repeated(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    tensor, mark = marked[0]
    if name == "repeat_interleave":
        dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
        same = dim is not None and dim % tensor.dim() != mark.dim
    else:
        times = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
        from_last = tensor.dim() - mark.dim
        same = len(times) < from_last or times[-from_last] == 1
    return along(out, marked, name, broadcast=True) if same else unknown(out, "they were repeated")


def _broadcast(
    name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked
) -> Mark | None:
    return along(out, marked, name, broadcast=True)


def _none(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    return None


def default(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    """Of functions that treat rows one by one."""
    return along(out, marked, name)


_DIM_COMES_SECOND = {"norm", "linalg_norm", "linalg_vector_norm", "quantile", "nanquantile", "kthvalue"}
_NAMES: list[tuple[Rule, str]] = [
    (
        _reduced,
        "sum nansum mean nanmean prod max min amax amin aminmax argmax argmin any all std var std_mean var_mean norm "
        "linalg_norm linalg_vector_norm logsumexp median nanmedian mode quantile nanquantile kthvalue count_nonzero",
    ),
    (_transposed, "transpose swapaxes swapdims t T mT H mH adjoint permute movedim moveaxis"),
    (_squeezed, "squeeze unsqueeze"),
    (_reshaped, "view reshape flatten unflatten view_as reshape_as ravel"),
    (_stacked, "stack"),
    (_joined, "cat concat concatenate hstack vstack dstack column_stack row_stack"),
    (_cut, "split chunk split_with_sizes tensor_split unsafe_split unsafe_chunk narrow unbind select"),
    (_multiplied, "matmul mm bmm mv dot vdot __matmul__ __rmatmul__"),
    (_einsum, "einsum"),
    (indexed, "__getitem__ index_select"),
    (_repeated, "repeat tile repeat_interleave"),
    (
        _broadcast,
        "add sub mul div rsub true_divide floor_divide divide multiply subtract pow maximum minimum where eq ne lt le gt ge "
        "lerp addcmul addcdiv masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __rdiv__ "
        "__pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ logical_and logical_or remainder fmod "
        "atan2 expand",
    ),
    (_none, "new_zeros new_ones new_empty new_full new_tensor bincount histc unique cov corrcoef"),
]
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES for name in names.split()}
"""Functions whose results are not simply rows along the same dimension."""
