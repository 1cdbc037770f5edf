"""Which kernel serves a call, or each kernel's reasons why it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sargnn.errors import KernelError
from sargnn.kernels import KERNELS
from sargnn.kernels.base import Kernel
from sargnn.resolve import resolve


def choose_kernel(name: str, operation: str, device: torch.device, dtype: torch.dtype, allowed: Sequence[str]) -> Kernel:
    """The kernel called ``name``, or for ``auto`` the first of ``allowed`` that can serve.

    Args:
        name: ``auto`` or a key of ``KERNELS``.
        operation: what it must be able to do, such as ``sum``.
        allowed: the names that the training mode accepts, best first.

    Raises:
        ConfigError: no kernel has this name.
        KernelError: it cannot serve; the message lists each kernel's reasons.
    """
    if name != "auto":
        resolve("kernel", KERNELS, name)
    reasons: dict[str, list[str]] = {}
    for candidate in KERNELS if name == "auto" else (name,):
        kernel = resolve("kernel", KERNELS, candidate)()
        reasons[candidate] = kernel.not_supported_reasons(operation, device, dtype)
        if candidate not in allowed:
            hint = "; use one_shot" if candidate == "fused" else ""
            reasons[candidate].append(f"this training mode, a baseline, runs with {' or '.join(allowed)}{hint}")
        if not reasons[candidate]:
            return kernel
    lines = [f"{kernel}: {'; '.join(why)}" for kernel, why in reasons.items()]
    raise KernelError(
        f"No kernel can serve '{operation}' on {device.type} in {dtype}.\n    " + "\n    ".join(lines),
        allowed=["auto", *allowed],
    )
