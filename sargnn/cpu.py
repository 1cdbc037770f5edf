"""What this machine's CPU can do by itself."""

from __future__ import annotations

import time
from pathlib import Path

BF16_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16"}
"""Flags of Linux -> names, of instructions that multiply bf16. The last is ARM's."""


def bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The names of those that this CPU has; none also where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ()
    flags = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return tuple(name for flag, name in BF16_INSTRUCTIONS.items() if flag in flags)


def without_bf16(precision: str, device: str = "cpu") -> str | None:
    """What a run in this precision is told where there is not what makes it fast; None where there is nothing to say."""
    if device != "cpu" or precision not in ("bf16", "mixed"):
        return None
    has = bf16_instructions()
    if not has:
        return f"precision={precision}: this CPU has no instructions for products of bf16, so it may be slower than fp32"
    if precision == "mixed" and "AMX" not in has:
        return "precision=mixed: without AMX PyTorch takes narrow products, on some CPUs all, of fp32 entries, as in fp32"
    return None


def describe_bf16() -> str:
    """What the CPU has, and what it brings: products of [20000, 256] by [256, 256] on one core, 0.2 s."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rates = []
    for dtype in (torch.bfloat16, torch.float32):
        rows, weight = torch.ones(20_000, 256, dtype=dtype), torch.ones(256, 256, dtype=dtype)
        out, best = rows @ weight, float("inf")
        for _ in range(3):
            started = time.perf_counter()
            torch.mm(rows, weight, out=out)
            best = min(best, time.perf_counter() - started)
        rates.append(2 * rows.numel() * 256 / best / 1e9)
    torch.set_num_threads(threads)
    names = " and ".join(bf16_instructions()) or "neither AMX nor AVX512-BF16"
    return f"{names}: products {rates[0]:.0f} GFLOP/s in bf16, {rates[1]:.0f} in fp32 (one core)"
