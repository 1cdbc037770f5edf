"""A record of what is allocated and freed while PyTorch runs, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sargnn.backends.memory import Pool, holders, is_held_once


@dataclass(frozen=True)
class Event:
    """A tensor's memory comes or goes.

    Attributes:
        number: of the tensor. comes: it is allocated; else it is freed.
        shape, item_bytes: of the tensor. more: another shape, of what it has beside that.
        pooled: its memory is asked of the engine's pool. phase: of the step, when it came.
        aggregates: whether a layer aggregated then, or went backward.
    """

    number: int
    comes: bool
    shape: tuple[int, ...] = ()
    item_bytes: int = 0
    more: tuple[int, ...] | None = None
    pooled: bool = False
    phase: str = ""
    aggregates: bool = False


@dataclass
class _Live:
    number: int
    alias: Tensor


class Trace(TorchDispatchMode):
    """Records allocations of tensors by all operators that run within it, and when nothing holds them any more.

    What was there before is not recorded. Memory that compiled loops and libraries take for themselves is not seen.

    Attributes:
        phase: of the step, as who runs it says. aggregates: whether a layer does, or goes backward, likewise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.is_on = False
        self.phase, self.aggregates = "", False
        self._live: dict[int, _Live] = {}
        self._known: dict[int, Tensor] = {}
        self._alone = holders(torch.empty(1))

    def __enter__(self) -> Trace:
        super().__enter__()
        self.is_on = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.is_on = False
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._know(tensor)
        self.note_freed()
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self.note(tensor)
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self._split_workspace(func, args, kwargs or {}, out[3])
        return out

    def note(self, tensor: Tensor, *, pooled: bool = False) -> None:
        """A tensor that an operator gave; only a new one is an event."""
        where = tensor.untyped_storage()._cdata
        if where in self._known or not tensor.numel():
            return
        if where in self._live:
            if pooled:
                self._change(where, shape=tuple(tensor.shape), pooled=True)
            return
        number = len(self.events)
        self._live[where] = _Live(number, tensor.detach())
        shape, item_bytes = tuple(tensor.shape), tensor.element_size()
        self.events.append(Event(number, True, shape, item_bytes, pooled=pooled, phase=self.phase, aggregates=self.aggregates))

    def note_freed(self) -> None:
        """Look what nobody holds any more."""
        for where, live in list(self._live.items()):
            if holders(live.alias) == self._alone:
                del self._live[where]
                self.events.append(Event(live.number, False))

    def is_alone(self, tensor: Tensor) -> bool:
        """Whether nothing but the caller and this record holds the tensor's memory."""
        recorded = tensor.untyped_storage()._cdata in self._live
        return holders(tensor) == self._alone + recorded

    def _split_workspace(self, func: Any, args: Any, kwargs: Any, workspace: Tensor | None) -> None:
        """What oneDNN keeps of D steps of B sequences until backward, a [D * B] + b [B] bytes; a single step tells a from b."""
        steps, sequences = args[0].shape[:2]
        if workspace is None or not workspace.numel() or steps < 2:
            return
        single = func(args[0][:1], *args[1:], **kwargs)[3].numel()
        each = -(-(workspace.numel() - single) // (sequences * (steps - 1)))
        rest = max(0, -(-single // sequences) - each)
        self._change(workspace.untyped_storage()._cdata, shape=(sequences * steps, each), more=(sequences, rest))

    def _change(self, where: int, **changes: Any) -> None:
        """The event of the tensor whose memory is there: what came says more of itself."""
        number = self._live[where].number
        at = next(i for i in reversed(range(len(self.events))) if self.events[i].number == number)
        self.events[at] = dataclasses.replace(self.events[at], **changes)

    def _know(self, tensor: Tensor) -> None:
        where = tensor.untyped_storage()._cdata
        if where not in self._live and where not in self._known:
            self._known[where] = tensor.detach()


class TracedPool(Pool):
    """A pool whose tensors a record sees: each has memory of its own."""

    def __init__(self, trace: Trace, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._trace = trace

    def empty(self, rows: int, width: int, like: Tensor) -> Tensor:
        tensor = like.new_empty(rows, width)
        if self.enabled and self._trace.is_on:
            self._trace.note(tensor, pooled=True)
        return tensor

    def is_only_holder(self, tensor: Tensor) -> bool:
        return is_held_once(tensor) and tensor.is_contiguous() and self._trace.is_alone(tensor)


def load_libraries() -> None:
    """Import what PyTorch imports for the first record, 75 MB: before a worker's memory is measured."""
    with Trace():
        torch.empty(1)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.device.type == "cpu")
