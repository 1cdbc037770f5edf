"""Compiling the kernels once, before workers start."""

from __future__ import annotations

import os
from typing import Any

from sargnn.run.env import PRECISION, note_compiled


def warm_up() -> None:
    """Compile every kernel, or load it from Numba's cache where it was compiled before. Runs none of them.

    For the precision of the run that the environment is for (``launch.env``), for all where it names none. The launching
    process calls it so that no worker has to compile, the fork server so that workers start with the code loaded and share its
    memory.
    """
    import numba

    from sargnn import rng
    from sargnn.backends import block
    from sargnn.backends.cpu import (
        destination_records,
        edge_dropout,
        folds,
        layer_norm_loops,
        mixed_rows,
        moves,
        nodewise_loops,
        tile_products,
    )
    from sargnn.backends.cpu.kernel import FusedKernel
    from sargnn.bf16 import ROW_DTYPES, wide
    from sargnn.plan import loops

    chosen = os.environ.get(PRECISION)
    rows_of = [ROW_DTYPES[chosen]] if chosen else ROW_DTYPES.values()
    dtypes = dict.fromkeys(held for row_dtype in rows_of for held in (row_dtype, wide(row_dtype)))
    compiled: list[Any] = [
        rng,
        moves,
        loops,
        block,
        nodewise_loops,
        layer_norm_loops,
        edge_dropout,
        folds,
        destination_records,
        mixed_rows,
        tile_products,
    ]
    compiled += [FusedKernel().operation(name) for name in FusedKernel.operations]
    for part in compiled:
        for dtype in dtypes:
            for function, arguments in part.samples(dtype):
                function.compile(tuple(numba.typeof(argument) for argument in arguments))
    note_compiled()
