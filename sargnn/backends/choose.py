"""Which kernel serves an operation, or each kernel's reasons why it cannot; and what stands around an operation: bytes that are
counted for profiles, bf16 rows for kernels that know fp32 and fp64 only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from sargnn.backends import BACKENDS, KERNELS
from sargnn.backends.base import Backend, Kernel
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import AutogradOperation, MovedRows, Operation, RunningSoftmax, Tables, takes_weights
from sargnn.errors import KernelError
from sargnn.profile import AGGREGATION, Profile
from sargnn.resolve import resolve


def choose_kernel(
    kernel_name: str, operation: str, device: torch.device, dtype: torch.dtype, *, autograd: bool = False
) -> Kernel:
    """The kernel called ``kernel_name``, or for ``auto`` the first one that can serve.

    Args:
        kernel_name: ``auto``, a key of ``KERNELS``, or the target ("FILE.py:Class") of a kernel outside of this package.
        dtype: of rows.
        autograd: whether autograd is to differentiate the operation by itself, as the baseline needs it.

    Raises:
        ConfigError: no kernel has this name.
        KernelError: it cannot serve; the message lists each kernel's reasons.
    """
    reasons: dict[str, list[str]] = {}
    for name in KERNELS if kernel_name == "auto" else (kernel_name,):
        kernel = make_kernel(name)
        reasons[name] = kernel.not_supported_reasons(operation, device, dtype, autograd=autograd)
        if not reasons[name]:
            return kernel
    lines = [f"{name}: {'; '.join(why)}" for name, why in reasons.items()]
    raise KernelError(
        f"No kernel can serve '{operation}' on {device.type} in {dtype}.\n    " + "\n    ".join(lines),
        allowed=["auto", *(n for n in KERNELS if n != kernel_name and (make_kernel(n).autograd_operations or not autograd))],
    )


def make_backend(kernel_name: str, device: torch.device) -> Backend:
    """What computes all but edge operations: the named kernel's backend if it brings one, else the device's. Raises
    ``KernelError`` where the kernel brings one, and cannot run on the device."""
    kernel = None if kernel_name == "auto" else make_kernel(kernel_name)
    if kernel is not None and kernel.backend is not None:
        if reasons := kernel.unavailable_reasons(device, torch.float32):
            raise KernelError(
                f"kernel={kernel_name} cannot run: {'; '.join(reasons)}.",
                allowed=["auto", *(name for name in KERNELS if name != kernel_name)],
            )
        return kernel.backend(device)
    elsewhere = "torch" if find_spec("triton") is None else "cuda"
    backend: Backend = resolve("backend", BACKENDS, "cpu" if device.type == "cpu" else elsewhere)(device)
    return backend


def make_operation(
    kernel: Kernel, operation: str, *, profile: Profile, autograd: bool = False, dtype: torch.dtype = torch.float32
) -> Any:
    """What a kernel runs for an operation that it can serve: an ``Operation``; with ``autograd`` an ``AutogradOperation``.

    Args:
        profile: where the bytes that are read and written are counted, if it is recording; not with ``autograd``.
        dtype: of rows.
    """
    half = dtype == torch.bfloat16
    if autograd:
        function = kernel.autograd_operation(operation)
        return widened_autograd(function) if half and not kernel.autograd_reads_bf16 else function
    implementation = kernel.operation(operation)
    counted = CountedOperation(implementation, profile) if profile.recording else implementation
    return WidenedOperation(counted) if half and not kernel.reads_bf16 else counted


def make_kernel(name: str) -> Kernel:
    """The kernel of a name or a target. Raises ``ConfigError`` if there is none."""
    kernel: Kernel = resolve("kernel", KERNELS, name)()
    return kernel


class _Around(Operation):
    """Passes every call on to another operation; whatever else is asked of it is that operation's."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    @abstractmethod
    def _pass_on(self, call: str, block: EdgeBlock, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None: ...

    def forward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self._pass_on("forward", block, arguments, settings)

    def backward(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self._pass_on("backward", block, arguments, settings)

    def weight_gradient(self, block: EdgeBlock, *arguments: Any, **settings: Any) -> None:
        self._pass_on("weight_gradient", block, arguments, settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)


class CountedOperation(_Around):
    """Counts the rows that an operation declares (see ``Operation``). What a reducer does outside of it is not counted."""

    def __init__(self, operation: Operation, profile: Profile) -> None:
        super().__init__(operation)
        self._profile = profile

    def _pass_on(self, call: str, block: EdgeBlock, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        rows = next((tensor for tensor in _tensors(arguments) if tensor.dim() == 2), None)
        if rows is not None:
            moved: MovedRows = getattr(self._operation, f"{call}_rows")
            per_source = moved.per_source + bool(settings.get("add"))  # with add=True each source row is read, too
            per_destination = moved.per_destination - (call == "forward" and not settings.get("add", True))  # only written
            of_edges, of_sources = moved.per_edge * block.num_edges, per_source * block.num_listed_sources
            number = of_edges + per_destination * block.num_listed + of_sources
            self._profile.work(AGGREGATION, number * rows.shape[1] * rows.element_size())
        getattr(self._operation, call)(block, *arguments, **settings)


class WidenedOperation(_Around):
    """Has an operation work with fp32 copies of the tables that are bf16, and stores them back."""

    def _pass_on(self, call: str, block: EdgeBlock, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        wide = _wide(arguments)
        getattr(self._operation, call)(block, *wide, **settings)
        for tensor, held in zip(_tensors(arguments), _tensors(wide), strict=True):
            if tensor.dtype == torch.bfloat16:
                tensor.data.copy_(held)  # which of them it writes to is not known; to the others this changes nothing

    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        operation: Any = self._operation
        records: Tensor = operation.destination_records(er, replace(running, out=_wide(running.out)), _wide(grad))
        return records


def widened_autograd(operation: AutogradOperation) -> AutogradOperation:
    """An operation in differentiable operators on fp32 copies of bf16 rows; its result is rounded."""

    def widened(block: EdgeBlock, *arguments: Any, **settings: Any) -> Tensor:
        output = operation(block, *_wide(arguments), **settings)
        return output.to(torch.bfloat16) if any(t.dtype == torch.bfloat16 for t in _tensors(arguments)) else output

    widened.takes_weights = takes_weights(operation)  # type: ignore[attr-defined]
    return widened


def _tensors(argument: Any) -> Iterator[Tensor]:
    """The tensors among arguments, and of the records among them."""
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _tensors(part)
    elif isinstance(argument, Tables):
        for field in fields(argument):
            yield from _tensors(getattr(argument, field.name))


def _wide(argument: Any) -> Any:
    """The same with fp32 copies of what is bf16."""
    if isinstance(argument, Tensor):
        return argument.float() if argument.dtype == torch.bfloat16 else argument
    if isinstance(argument, tuple):
        return tuple(_wide(part) for part in argument)
    if isinstance(argument, Tables):
        return replace(argument, **{field.name: _wide(getattr(argument, field.name)) for field in fields(argument)})
    return argument
