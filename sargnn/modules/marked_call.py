"""A call of PyTorch's on rows: which of its arguments have some, and which its results get (``trial.py`` says where).

Nothing here computes a result or knows who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.expressions import map_values
from sargnn.modules.tag import JOINED, Mark, Rows, is_shared, mark_of, set_mark
from sargnn.modules.verdict import Groups, Out

Marked = list[tuple[Tensor, Mark]]


@dataclass(slots=True)
class Call:
    """A call of a PyTorch function.

    Attributes:
        name: of the function, as PyTorch calls it; a property's own.
        func: the function.
        args, kwargs: its arguments.
        marked: the tensors with marks among the arguments, also in lists.
        watched: what is called within is seen as the module's own calls are.
        is_temporary: nobody but the call knows its first argument.
    """

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marked: Marked
    watched: Callable[[], AbstractContextManager[Any]]
    is_temporary: bool = False

    def argument(self, at: int, *keys: str, default: Any = None) -> Any:
        """An argument by its keywords or its place."""
        for key in keys:
            if key in self.kwargs:
                return self.kwargs[key]
        return self.args[at] if len(self.args) > at else default

    def again(self, make: Callable[[], Any]) -> Any:
        """What other calls give in this one's place."""
        with self.watched():
            return make()


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


def marked_in(args: Iterable[Any], kwargs: dict[str, Any]) -> Marked:
    """The tensors with marks among arguments, also in lists."""
    marked: Marked = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, (list, tuple)):
            marked += [(tensor, mark) for tensor in argument if (mark := mark_of(tensor)) is not None]
        elif (mark := mark_of(argument)) is not None:
            marked.append((argument, mark))
    return marked


def tensors_of(out: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(out, Tensor):
        return [out]
    tensors: list[Tensor] = []
    map_values(out, lambda value: tensors.append(value) if isinstance(value, Tensor) else None)
    return tensors


def carry(call: Call, out: Any, outs: Sequence[Out], groups: Groups) -> None:
    """Note on results what their rows are, and whether others read their memory."""
    shared = [t.untyped_storage()._cdata for t, _ in call.marked if is_shared(t) and t.layout == torch.strided]
    numbered = next((mark.numbered for _, mark in call.marked if mark.numbered), "")
    for number, output in enumerate(tensors_of(out)):
        told = outs[number] if number < len(outs) else Out("other")
        mark = mark_of_result(output, told, call, groups, numbered)
        is_view = bool(shared) and output.layout == torch.strided and output.untyped_storage()._cdata in shared
        set_mark(output, mark, shared=is_view or (is_shared(output) and any(output is tensor for tensor, _ in call.marked)))


def mark_of_result(output: Tensor, told: Out, call: Call, groups: Groups, numbered: str) -> Mark | None:
    """The mark of one of a call's results; None: it is the same on all workers."""
    if told.kind in ("alike", "sum", "mean"):
        return None
    source = groups.marks[told.group] if 0 <= told.group < len(groups.marks) else None
    if told.kind == "rows" and source is not None:
        return source._replace(dim=told.dim, parts=told.parts, before=told.before, numbered=numbered)
    if told.kind == "rows":  # made with a number of rows
        key = next(key for key, number in groups.numbers.items() if number == told.group)
        rows = key if isinstance(key, Rows) else None
        number = output.shape[told.dim] // (told.parts * told.before)
        return Mark(rows, told.dim, number, parts=told.parts, set=key, before=told.before)
    if not output.dim():
        return None
    dim = max(told.dim, 0)
    if told.kind == "others":
        joins = call.name in _JOINS and len({mark.key for _, mark in call.marked}) > 1
        why = "rows of several types were joined" if joins else "a part of them was taken, or they were put in another order"
        return Mark(None, dim, output.shape[dim], why, 1, _chosen_by(call), numbered)
    return Mark(None, dim, output.shape[dim], f"{call.name} made other rows of them", 1, object())


_JOINS = frozenset("cat concat concatenate vstack hstack row_stack".split())


def _chosen_by(call: Call) -> Any:
    """What tells picked rows from others: the mask that picked them, as it is now; joined ones: what was joined."""
    if call.name in _JOINS:
        return JOINED, *(mark.key for _, mark in call.marked)
    masks = [(id(tensor), tensor._version) for tensor, _ in call.marked if tensor.dtype == torch.bool]
    return ("others", call.marked[0][1].key, *masks) if call.name == "__getitem__" and len(masks) == 1 else object()
