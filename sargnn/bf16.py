"""bf16 rows: half the bytes of fp32, the same range, 8 bits of precision. Computed with in fp32, rounded when stored.

Numba has no such type. Compiled loops get rows as uint16 arrays that hold the upper halves of fp32 numbers: ``widen`` makes a
number of one, ``narrow`` rounds a number to nearest, ties to even, for the array that it is stored in. On arrays of fp32 and
fp64 numbers both do nothing, so one loop serves all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload
from torch import Tensor

ROW_DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "mixed": torch.float32,
    "bf16x3": torch.float32,
    "bf16x6": torch.float32,
}
"""The dtype of rows, by precision. ``mixed``: products of tables are taken of their entries rounded to bf16. ``bf16x3`` and
``bf16x6``: of entries as sums of bf16 terms, where a CPU has tiles for them (``cpu.PRODUCT_TERMS``)."""
BITS = np.uint16
"""What an array of bf16 rows holds, for compiled code."""
_I16, _I32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
_NOT_A_NUMBER = 0x7FC0
_HALF = "bf16"
_PRODUCTS: Any = getattr(torch.backends.mkldnn, "matmul", None)  # since PyTorch 2.9


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums, statistics and scores of rows of a dtype are held in: fp32 for bf16, else the dtype itself."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def number(value: float, like: torch.dtype) -> Any:
    """A number of the dtype ``wide(like)``, as compiled loops take it."""
    return torch.empty(0, dtype=wide(like)).numpy().dtype.type(value)


def array_of(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor on a CPU as compiled loops take it."""
    tensor = tensor.detach()
    return tensor.view(torch.int16).numpy().view(BITS) if tensor.dtype == torch.bfloat16 else tensor.numpy()


@contextmanager
def products_in_bf16() -> Iterator[None]:
    """Within it PyTorch takes products of fp32 matrices of their entries rounded to bf16, on a GPU to TF32; sums are fp32."""
    before = _precision_of_products()
    _choose_products(_HALF)
    try:
        yield
    finally:
        _choose_products(before)


def leave_products() -> Callable[[], None]:
    """Take products as PyTorch does by itself; what is returned takes them again as before."""
    before = _precision_of_products()
    _choose_products("")
    return lambda: _choose_products(before)


def multiplies_in_bf16(x: Tensor) -> bool:
    """Whether products of a table like x are taken of bf16 entries here."""
    return x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and _precision_of_products() == _HALF)


def _precision_of_products() -> str:
    if _PRODUCTS is None:
        return _HALF if torch.get_float32_matmul_precision() == "medium" else ""
    return str(_PRODUCTS.fp32_precision)


def _choose_products(precision: str) -> None:
    if _PRODUCTS is None:
        torch.set_float32_matmul_precision("medium" if precision == _HALF else "highest")
    else:
        _PRODUCTS.fp32_precision = precision or "ieee"
        # TF32 has three bits more than bf16, and a GPU reads fp32 tables for it as they are.
        torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == _HALF else "ieee"


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


@intrinsic
def narrow_bits(typingctx: Any, bits: Any) -> Any:
    """The fp32 number that has these bits, uint32, as it is stored in an array of bf16 rows."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return narrowed(builder, arguments[0], builder.bitcast(arguments[0], _FLOAT))

    return types.uint16(types.uint32), code


def held_row(target: Any, scratch: Any) -> Any:
    """Where compiled code works on a row: in ``target`` itself, or of bf16 rows in ``scratch``, numbers for as many columns."""
    raise NotImplementedError("for compiled code")


@overload(held_row, inline="always", strict=False)
def _held_row(target: Any, scratch: Any) -> Any:
    half = target.dtype == types.uint16
    return (lambda target, scratch: scratch) if half else (lambda target, scratch: target)


def store_row(held: Any, target: Any) -> None:
    """What ``held_row`` gave goes into ``target``, where it is not that itself."""
    raise NotImplementedError("for compiled code")


@overload(store_row, inline="always", strict=False)
def _store_row(held: Any, target: Any) -> Any:
    if target.dtype != types.uint16:
        return lambda held, target: None

    def store(held: Any, target: Any) -> None:
        for f in range(len(target)):
            target[f] = narrow(held[f], target)

    return store


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
