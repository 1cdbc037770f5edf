"""What code and which libraries made a run."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sargnn.interop.dgl import is_installed
from sargnn.native import chosen

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
        lines = Path("/proc/cpuinfo").read_text().splitlines()
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
