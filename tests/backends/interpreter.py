"""Triton's interpreter rounds fp32 numbers to bf16 towards zero; a GPU, and the interpreter after this call, to nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def round_to_nearest() -> None:
    """Ties go to even. Triton must have been imported with ``TRITON_INTERPRET=1``."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast = InterpreterBuilder.cast_impl

    def cast_to_nearest(builder: Any, handle: Any, kind: Any) -> Any:
        kinds = handle.dtype.scalar, kind.scalar
        if kinds == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(handle.data)).to(torch.bfloat16)
            return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        if kinds == (tl.bfloat16, tl.float32):
            return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return cast(builder, handle, kind)

    InterpreterBuilder.cast_impl = cast_to_nearest
