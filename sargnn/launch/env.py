"""The environment of worker processes, and of the process that starts them; complete before torch is imported."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from sargnn.config.run import RunConfig
from sargnn.tracking.provenance import usable_cores

PRECISION = "SARGNN_PRECISION"
"""The variable that names the precision for which workers need kernels."""


def default_threads(world: int) -> int:
    """Threads per worker: the cores this process may use, shared out, at least one."""
    return max(1, usable_cores() // world)


def compiled_sources() -> list[Path]:
    """The files that machine code is made from: those that use Numba, and all of the fused kernel, which such may call."""
    package = Path(__file__).parent.parent
    uses_numba = re.compile(rb"^\s*(import|from) numba", flags=re.M)
    fused = package / "backends" / "cpu"
    return [
        path for path in sorted(package.rglob("*.py")) if path.is_relative_to(fused) or uses_numba.search(path.read_bytes())
    ]


@cache
def _cache_name() -> str:
    """Read from the files once: a process runs what they held when it was started."""
    digest = hashlib.sha256(str(Path(__file__).parent).encode())
    for path in compiled_sources():
        digest.update(path.read_bytes())
    return f"numba-{digest.hexdigest()[:12]}"


def numba_cache_dir() -> Path:
    """A writable place for compiled kernels, one per user, path of this package and content of the files they are made of.

    Numba itself only watches the file that a function stands in, not those of the functions that it calls; and it knows a file
    by its path, so that another checkout needs kernels of its own. A folder given as NUMBA_CACHE_DIR gets one for this, too.
    """
    name = _cache_name()
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given) if Path(given).name == name else Path(given) / name
    for candidate in (user_cache_path("sargnn") / name, Path(tempfile.gettempdir()) / f"sargnn-{name}-{os.getuid()}"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    return Path(tempfile.mkdtemp(prefix="sargnn-numba-"))


_ALL = "all"


def kernels_are_compiled() -> bool:
    """Whether the place for compiled kernels, once it is in the environment, holds those of the precision that this names."""
    return any(_mark(precision).exists() for precision in (os.environ.get(PRECISION, _ALL), _ALL))


def note_compiled() -> None:
    """It does now; nothing where the environment has no such place, or one that cannot be written."""
    if "NUMBA_CACHE_DIR" in os.environ and not kernels_are_compiled():
        mark = _mark(os.environ.get(PRECISION, _ALL))
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(precision: str) -> Path:
    return Path(os.environ["NUMBA_CACHE_DIR"]) / f"compiled_{precision}"


def worker_environment(threads: int, precision: str | None = None) -> dict[str, str]:
    """Variables that workers need. ``precision``: of the only kernels that they do; None: of all."""
    return ({} if precision is None else {PRECISION: precision}) | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        # With one thread the fork server holds the kernels, and GNU OpenMP does not survive a fork; else it is the faster one.
        "NUMBA_THREADING_LAYER": "workqueue" if threads == 1 else "omp",
        "NUMBA_CACHE_DIR": str(numba_cache_dir()),
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for PyTorch's CPU tensors
        # glibc raises this by itself up to 32 MB; freed tensors below it stay with the process and add to its peak.
        "MALLOC_MMAP_THRESHOLD_": "1048576",
        "DGLBACKEND": "pytorch",
        # Killed workers leave semaphores to Python's resource tracker, which removes them; its remark would only alarm.
        "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
    }


def prepare_process(config: RunConfig) -> RunConfig:
    """Set what workers inherit, before torch is imported here, numba compiles and the fork server starts; threads filled in."""
    threads = config.threads or default_threads(config.world)
    os.environ.update(worker_environment(threads, config.precision))
    if "numba" in sys.modules:  # which has read it; once its threads run, another number is an error at the next compilation
        sys.modules["numba"].core.config.reload_config()
    return dataclasses.replace(config, threads=threads)
