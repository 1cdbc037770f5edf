"""Which kernel serves an operation, or each kernel's reasons why it cannot."""

from __future__ import annotations

from typing import Any

import torch

from sargnn.errors import KernelError
from sargnn.kernels import KERNELS
from sargnn.kernels.base import Kernel
from sargnn.kernels.counting import CountedOperation
from sargnn.profile import Profile
from sargnn.resolve import resolve


def choose_operation(
    kernel_name: str,
    operation: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    profile: Profile,
    autograd: bool = False,
    target: str | None = None,
) -> Any:
    """The operation of the kernel called ``kernel_name``, or for ``auto`` of the first kernel that can serve.

    Args:
        kernel_name: ``auto``, a key of ``KERNELS``, or the name of the kernel that ``target`` points to.
        operation: what is to be done, such as ``sum``.
        device, dtype: of the tensors.
        profile: where the bytes that are read and written are counted, if it is recording; not with ``autograd``.
        autograd: whether autograd is to differentiate the operation by itself, as the baseline needs it.
        target: "FILE.py:Class" or "package.module:Class" of a kernel outside of this package.

    Returns:
        An ``Operation``; with ``autograd`` a function, an ``AutogradOperation``. See ``sargnn.kernels.operations``.

    Raises:
        ConfigError: no kernel has this name.
        KernelError: it cannot serve; the message lists each kernel's reasons.
    """
    reasons: dict[str, list[str]] = {}
    for name in KERNELS if kernel_name == "auto" and target is None else (kernel_name,):
        kernel = make_kernel(name, target)
        reasons[name] = kernel.not_supported_reasons(operation, device, dtype, autograd=autograd)
        if reasons[name]:
            continue
        if autograd:
            return kernel.autograd_operation(operation)
        found = kernel.operation(operation)
        return CountedOperation(found, profile) if profile.recording else found
    lines = [f"{name}: {'; '.join(why)}" for name, why in reasons.items()]
    raise KernelError(
        f"No kernel can serve '{operation}' on {device.type} in {dtype}.\n    " + "\n    ".join(lines),
        allowed=["auto", *(name for name in KERNELS if not autograd or make_kernel(name).autograd_operations)],
    )


def make_kernel(name: str, target: str | None = None) -> Kernel:
    """The kernel called ``name``, or the one that ``target`` points to. Raises ``ConfigError`` if there is none."""
    given = () if target is None else (target,)
    kernel: Kernel = resolve("kernel", KERNELS, name, *given)()
    return kernel
