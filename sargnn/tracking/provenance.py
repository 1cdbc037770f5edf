"""What code, which libraries and what CPU made a run, and what that CPU can do by itself."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sargnn.interop.dgl import is_installed
from sargnn.native import chosen
from sargnn.native.build import CPUINFO, bf16_instructions

_PACKAGES = ("sargnn", "torch", "triton", "dgl", "numpy", "hydra-core", "pymetis", "kaminpar", "mlflow")


def git_sha() -> str | None:
    """The commit of the source tree, with ``-dirty`` if it was changed; None outside a checkout."""
    here = Path(__file__).parent
    try:
        sha = _git(here, "rev-parse", "HEAD")
        return sha + ("-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_model() -> str | None:
    """The processor's model, as the kernel names it; None where it names none."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def versions() -> dict[str, str]:
    """Of Python and of each package that shapes a result, and the instructions that the compiled code was built for."""
    by_package = {"python": platform.python_version(), "instructions": chosen()}
    for package in _PACKAGES:
        by_package[package] = "not installed"
        if package != "dgl" or is_installed():
            with suppress(PackageNotFoundError):
                by_package[package] = version(package)
    return by_package


def without_bf16(precision: str, device: str = "cpu") -> str | None:
    """What a run in this precision is told where there is not what makes it fast; None where there is nothing to say."""
    if device != "cpu" or precision not in ("bf16", "mixed"):
        return None
    has = bf16_instructions()
    if not has:
        return f"precision={precision}: this CPU has no instructions for products of bf16, which take as long as those of fp32"
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
