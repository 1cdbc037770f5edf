"""DGL's operators on a CPU, and memory of its own, which is no tensor's: its graphs' formats, and what libxsmm makes of them
while it sums."""

from __future__ import annotations

import os
from functools import cache

import torch

from sargnn.backends.base import Kernel
from sargnn.interop.dgl import import_dgl


class DglKernel(Kernel):
    """DGL's operators on graphs that are built on first use and kept with the block; see ``graphs``."""

    name = "dgl"
    autograd_reads_bf16 = True
    operations = {
        "sum": "sargnn.backends.torch.dgl_sums:DglSum",
        "max": "sargnn.backends.torch.dgl_sums:DglMax",
        "gat": "sargnn.backends.torch.dgl_attention:DglGat",
        "gatv2": "sargnn.backends.torch.dgl_attention:DglGatV2",
    }
    autograd_operations = {
        "sum": "sargnn.backends.torch.dgl_sums:sum_autograd",
        "max": "sargnn.backends.torch.dgl_sums:max_autograd",
        "gat": "sargnn.backends.torch.dgl_attention:gat_autograd",
        "gatv2": "sargnn.backends.torch.dgl_attention:gatv2_autograd",
    }

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"DGL from PyPI runs on a CPU only, not on {device.type}")
        if dtype not in (torch.float32, torch.float64, torch.bfloat16):
            reasons.append(f"it is used in fp32, fp64 and bf16, not in {dtype}")
        try:
            import_dgl()
        except (ImportError, OSError) as error:
            reasons.append(f"DGL cannot be imported: {error}")
        return reasons

    def graph_bytes(self, operation: str, *, autograd: bool) -> int:
        return graph_bytes(operation, whole=autograd)

    def passing_bytes(self, operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
        return libxsmm_bytes(operation, edges, rows, row_bytes, dtype)


_SUMS, _ATTENTION, _BOTH_ATTENTIONS = 8, 20, 36
"""Bytes of an edge, measured: both formats of a graph of sums; the formats of an attention's graph, and of its two graphs."""
_BLOCK = 8
"""Bytes of an edge in libxsmm's blocks."""
_ATTENTIONS = ("gat", "gatv2")
_USUAL_CACHE_BYTES, _SHARE_OF_CACHE = 40_000_000, 500
"""Of DGL's ``array/cpu/spmm_blocking_libxsmm.h``: the last cache where its size is not known, and the heuristic's parameter."""
_CACHE_SIZE = 194
"""``_SC_LEVEL3_CACHE_SIZE`` of glibc, which Python has no name for."""


def graph_bytes(operation: str, *, whole: bool) -> int:
    """Of an edge, what DGL's graphs of a block hold beside the block's own index arrays.

    Args:
        operation: as ``backends.operations`` names it. whole: of the graphs that plain autograd reads.
    """
    if operation in _ATTENTIONS:
        return _ATTENTION if whole else _BOTH_ATTENTIONS
    return _SUMS if whole else 0


def libxsmm_bytes(operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
    """What a sum or maximum copies of its edges while it runs: they are cut into blocks where the rows of others that they read
    are more than the last cache holds a share of.

    Args:
        edges, rows: of a block, and of its destinations. row_bytes: of a source row. dtype: of rows.
    """
    if operation in _ATTENTIONS or dtype == torch.float64 or not rows:
        return 0  # sums that weigh rows by head, and fp64, run without libxsmm
    return _BLOCK * edges if edges / rows * row_bytes * _SHARE_OF_CACHE > last_cache_bytes() else 0


@cache
def last_cache_bytes() -> int:
    """Of this machine, as DGL reads it."""
    try:
        size = os.sysconf(_CACHE_SIZE)
    except (OSError, ValueError):
        size = -1
    return size if size >= 0 else _USUAL_CACHE_BYTES
