"""bf16 rows for what is still compiled by Numba, as uint16 arrays. It goes with the last of these loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

from sargnn.bf16 import wide

BITS = np.uint16
"""What an array of bf16 rows holds, for compiled code."""
_I16, _I32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
_NOT_A_NUMBER = 0x7FC0


def number(value: float, like: torch.dtype) -> Any:
    """A number of the dtype ``wide(like)``, as compiled loops take it."""
    return torch.empty(0, dtype=wide(like)).numpy().dtype.type(value)


def array_of(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor on a CPU as compiled loops take it."""
    tensor = tensor.detach()
    return tensor.view(torch.int16).numpy().view(BITS) if tensor.dtype == torch.bfloat16 else tensor.numpy()


@intrinsic
def widen(typingctx: Any, x: Any) -> Any:
    """The number that an element of an array of rows is."""
    if x != types.uint16:
        return x(x), lambda context, builder, signature, arguments: arguments[0]

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(arguments[0], _I32), ir.Constant(_I32, 16)), _FLOAT)

    return types.float32(x), code


@intrinsic
def narrow(typingctx: Any, x: Any, rows: Any) -> Any:
    """``x`` as it is stored in the array ``rows``: rounded to nearest, ties to even; not a number stays so."""
    if rows.dtype != types.uint16:
        return x(x, rows), lambda context, builder, signature, arguments: arguments[0]

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return narrowed(builder, builder.bitcast(arguments[0], _I32), arguments[0])

    return types.uint16(types.float32, rows), code


def narrowed(builder: Any, bits: Any, value: Any) -> Any:
    """Code for the upper halves of fp32 numbers or vectors ``value``, whose bits are ``bits``."""
    kind = bits.type
    lanes = getattr(kind, "count", 0)
    short = ir.VectorType(_I16, lanes) if lanes else _I16

    def constant(number: int) -> Any:
        return ir.Constant(kind, [number] * lanes if lanes else number)

    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(builder.add(bits, constant(0x7FFF)), odd), constant(16))
    unordered = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(unordered, constant(_NOT_A_NUMBER), rounded), short)
