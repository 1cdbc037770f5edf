"""bf16 rows: half the bytes of fp32, the same range, 8 bits of precision.

Computed with in fp32; rounded when stored, to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROW_DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "mixed": torch.float32,
}
"""The dtype of rows, by precision. ``mixed``: products of tables are taken of their entries rounded to bf16."""
_HALF = "bf16"
_PRODUCTS: Any = getattr(torch.backends.mkldnn, "matmul", None)  # since PyTorch 2.9


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums, statistics and scores of rows of a dtype are held in: fp32 for bf16, else the dtype itself."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


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
