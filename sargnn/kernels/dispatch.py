"""Which kernel serves an operation, or each kernel's reasons why it cannot."""

from __future__ import annotations

from typing import Any

import torch

from sargnn.errors import KernelError
from sargnn.kernels import KERNELS
from sargnn.kernels.base import Kernel
from sargnn.kernels.counting import CountedOperation
from sargnn.kernels.widened import WidenedOperation, widened_autograd
from sargnn.profile import Profile
from sargnn.resolve import resolve


def choose_kernel(
    kernel_name: str,
    operation: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    autograd: bool = False,
) -> Kernel:
    """The kernel called ``kernel_name``, or for ``auto`` the first one that can serve.

    Args:
        kernel_name: ``auto``, a key of ``KERNELS``, or the target ("FILE.py:Class") of a kernel outside of this package.
        operation: what is to be done, such as ``sum``.
        device, dtype: of the tensors.
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
        allowed=["auto", *(name for name in KERNELS if not autograd or make_kernel(name).autograd_operations)],
    )


def make_operation(
    kernel: Kernel, operation: str, *, profile: Profile, autograd: bool = False, dtype: torch.dtype = torch.float32
) -> Any:
    """What a kernel runs for an operation that it can serve.

    Args:
        profile: where the bytes that are read and written are counted, if it is recording; not with ``autograd``.
        dtype: of rows.

    Returns:
        An ``Operation``; with ``autograd`` a function, an ``AutogradOperation``. See ``sargnn.kernels.operations``.
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
