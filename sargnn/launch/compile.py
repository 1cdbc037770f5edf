"""Compiling the kernels once, before workers start."""

from __future__ import annotations


def warm_up() -> None:
    """Compile every kernel for fp32 and fp64, or load it from Numba's cache where it was compiled before. Runs none of them.

    The launching process calls it so that no worker has to compile, the fork server so that workers start with the code
    loaded and share its memory.
    """
    import numba
    import torch

    from sargnn import rng
    from sargnn.comm import rows
    from sargnn.kernels import cpu_attention, cpu_attention_v2, cpu_nodewise, cpu_spmm

    for module in (rng, rows, cpu_spmm, cpu_nodewise, cpu_attention, cpu_attention_v2):
        for dtype in (torch.float32, torch.float64):
            for function, arguments in module.samples(dtype):
                function.compile(tuple(numba.typeof(argument) for argument in arguments))
