"""A device that is none: its tensors lie in this machine's memory, and count as being elsewhere.

To PyTorch they are on the device ``meta``, for which autograd needs no runtime. What a GPU refuses or waits for shows here:

| | |
|---|---|
| tensors here and there in one operator | fail, but for numbers (0-dim) that are only read |
| ``numpy()``, a NumPy array of one | fails |
| ``item()``, ``bool()``, ``tolist()``, ``cpu()``, ``torch.equal``, a copy from there | a ``read``: the host waits |
| ``nonzero``, ``unique``, a bool mask as an index, and what else has a size that only the device knows | a ``size``: likewise |
| a copy from here | a ``copy``: a GPU's stream is waited for unless it is ``non_blocking`` |
| ``torch.tensor(..., device=...)`` | fails when it is used: a copy that nobody sees |

Triton's kernels get the tensors' ``host`` (``sargnn.backends.cuda.launch``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_PACKAGE = str(Path(__file__).parents[2] / "sargnn")
_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense.default, _aten.equal.default}
_SIZES = {
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "repeat_interleave",
}
_INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}


class MixedError(RuntimeError):
    """An operator got tensors that are here and tensors that are there."""


@dataclass(frozen=True)
class Event:
    """The host waited for the device, or gave it something.

    Attributes:
        kind: ``read``, ``size``, ``copy``, or ``non_blocking``: a copy that nobody waits for.
        operator: PyTorch's name of it.
        place: the line of the package that asked, and who called it.
        thread: the rank's.
    """

    kind: str
    operator: str
    place: str
    thread: int = field(compare=False)

    def __str__(self) -> str:
        return f"{self.kind} by {self.operator} at {self.place}"


EVENTS: list[Event] = []
"""All so far."""


@contextmanager
def noted(*kinds: str) -> Iterator[list[Event]]:
    """The events of these kinds that this thread brings about within it; of all kinds if none is named."""
    events: list[Event] = []
    before = len(EVENTS)
    try:
        yield events
    finally:
        own = [event for event in EVENTS[before:] if event.thread == threading.get_ident()]
        events += [event for event in own if not kinds or event.kind in kinds]


class Pretended(Tensor):
    """A tensor that is there.

    Attributes:
        host: where its numbers are.
    """

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> Pretended:
        made: Pretended = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), host.stride(), host.storage_offset(), dtype=host.dtype, layout=host.layout, device=DEVICE
        )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    def new_tensor(self, data: Any, **settings: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **{"dtype": self.dtype} | settings).to(DEVICE)

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def tolist(self) -> Any:
        _note("read", "tolist")
        return self.host.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"pretended {self.host!r}"


class Present(TorchDispatchMode):
    """Within it, in this thread, the device is there. A context is for one use."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def host_of(tensor: Tensor) -> Tensor:
    """Where a tensor's numbers are, for what compares them: no event."""
    return tensor.host if isinstance(tensor, Pretended) else tensor


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    there = [leaf for leaf in leaves if isinstance(leaf, Pretended)]
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted)
    if any(leaf.device == DEVICE and not isinstance(leaf, Pretended) for leaf in leaves if isinstance(leaf, Tensor)):
        raise MixedError(f"{func} of a tensor that ``torch.tensor`` has put there, at {_place()}")
    if not there and wanted != DEVICE:
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Pretended)]
    if wanted is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if name in ("copy_", "_to_copy", "copy"):
        _note_copy(name, args, kwargs, wanted)
    elif there and any(tensor.dim() for tensor in here) or any(tensor in _written(func, args, kwargs) for tensor in _ids(here)):
        shapes = ", ".join(f"{list(t.shape)} {'there' if isinstance(t, Pretended) else 'here'}" for t in (*there, *here))
        raise MixedError(f"{name} of {shapes}, at {_place()}")
    elif func in _READS:
        _note("read", name)
    elif name in _SIZES and "output_size" not in kwargs or (name in _INDEXING and _masks(args)):
        _note("size", name)
    result = _on_host(func, tree_map(host_of_leaf, args), tree_map(host_of_leaf, kwargs))
    if (wanted is not None and wanted != DEVICE) or (name == "copy_" and not isinstance(args[0], Pretended)):
        return result if name != "copy_" else args[0]
    wrapped = tree_map(lambda leaf: Pretended(leaf) if isinstance(leaf, Tensor) else leaf, result)
    for leaf in there:
        if leaf.shape != leaf.host.shape:
            raise MixedError(f"{name} changes a tensor's shape, at {_place()}")
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is not _aten.mm.dtype_out:  # which only GPUs have
        return func(*args, **kwargs)
    x, w, dtype = args
    return torch.mm(x.to(dtype), w.to(dtype), out=kwargs["out"])


def host_of_leaf(leaf: Any) -> Any:
    return leaf.host if isinstance(leaf, Pretended) else leaf


def _note_copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: torch.device | None) -> None:
    source = args[0] if name == "_to_copy" else args[1]
    is_there = isinstance(source, Pretended)
    goes_there = isinstance(args[0], Pretended) if name != "_to_copy" else is_there if wanted is None else wanted == DEVICE
    if is_there == goes_there:
        return
    non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
    if is_there:
        _note("read", name)
    else:
        _note("non_blocking" if non_blocking else "copy", name)


def _ids(tensors: list[Tensor]) -> list[int]:
    return [id(tensor) for tensor in tensors]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
    """The tensors that an operator writes to."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    written = [given.get(a.name) for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return set(_ids([leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]))


def _masks(args: tuple[Any, ...]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _note(kind: str, operator: str) -> None:
    EVENTS.append(Event(kind, operator, _place(), threading.get_ident()))


def _place() -> str:
    """The innermost lines of the package that are under way."""
    frame, lines = sys._getframe(1), list[str]()
    while frame is not None and len(lines) < 3:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            lines.append(f"{frame.f_code.co_filename.removeprefix(_PACKAGE + '/')}:{frame.f_lineno} ({frame.f_code.co_name})")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)
