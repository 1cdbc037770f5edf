"""The environment of worker processes, and of the process that starts them, complete before torch is imported; and compiling
the kernels once, before workers start."""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from sargnn.compiled import numba_cache_dir
from sargnn.config.run import RunConfig
from sargnn.tracking.provenance import usable_cores

PRECISION = "SARGNN_PRECISION"
"""The variable that names the precision for which workers need kernels."""
_ALL = "all"


def default_threads(processes: int) -> int:
    """Threads of a worker's process: the cores this process may use, shared out, at least one."""
    return max(1, usable_cores() // processes)


def usual_processes(config: RunConfig) -> int:
    """``processes=auto``: one for each node of the machine's memory if the workers can be shared out, else one."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    return nodes if config.world % nodes == 0 and config.mode.name != "domain_parallel" else 1


def with_places(config: RunConfig) -> RunConfig:
    """With the number of processes and of their threads filled in."""
    if config.processes == "auto":
        config = dataclasses.replace(config, processes=usual_processes(config))
    return dataclasses.replace(config, threads=config.threads or default_threads(config.num_processes))


def workers_of(config: RunConfig) -> str:
    """How many workers there are, and where."""
    return f"{config.world} worker{'s' * (config.world > 1)} {places_of(config)}"


def places_of(config: RunConfig) -> str:
    """In how many processes workers are, where these have several, and with how many threads."""
    several, threads = config.num_processes > 1, f"{config.threads} thread{'s' * (config.threads != 1)}"
    if config.num_processes == config.world:
        return f"with {threads}{' each' * several}"
    return f"in {config.num_processes} process{'es' * several} with {threads}{' each' * several}"


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


def worker_environment(threads: int, precision: str | None = None, *, several: bool = False) -> dict[str, str]:
    """Variables that workers need.

    Args:
        threads: of each process.
        precision: of the only kernels that they need; None: of all.
        several: workers take turns in a process.
    """
    return ({} if precision is None else {PRECISION: precision}) | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        # With one thread the fork server holds the kernels, and GNU OpenMP does not survive a fork; else it is the faster one,
        # but it has a team of threads for every worker of a process.
        "NUMBA_THREADING_LAYER": "workqueue" if threads == 1 or several else "omp",
        "NUMBA_CACHE_DIR": str(numba_cache_dir()),
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for PyTorch's CPU tensors
        # glibc raises this by itself up to 32 MB; freed tensors below it stay with the process and add to its peak.
        "MALLOC_MMAP_THRESHOLD_": "1048576",
        "DGLBACKEND": "pytorch",
        # Killed workers leave semaphores to Python's resource tracker, which removes them; its remark would only alarm.
        "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
    }


def prepare_process(config: RunConfig) -> RunConfig:
    """Set what workers inherit, before torch is imported here, numba compiles and the fork server starts; threads and processes
    filled in."""
    config = with_places(config)
    os.environ.update(worker_environment(config.threads or 1, config.precision, several=config.num_processes < config.world))
    if "numba" in sys.modules:  # which has read it; once its threads run, another number is an error at the next compilation
        sys.modules["numba"].core.config.reload_config()
    return config


def warm_up(share: int = 0, shares: int = 1) -> None:
    """Compile every kernel, or load it from Numba's cache where it was compiled before. Runs none of them.

    Of several shares, for processes side by side, each has functions of its own: two that wrote of one function to the cache at
    the same time would lose what either wrote.

    For the precision of the run that the environment is for, for all where it names none. The launching process calls it so
    that no worker has to compile, the fork server so that workers start with the code loaded and share its memory.
    """
    import numba
    import torch

    from sargnn.backends import block
    from sargnn.backends.choose import make_backend
    from sargnn.bf16 import ROW_DTYPES, wide
    from sargnn.plan import loops

    chosen = os.environ.get(PRECISION)
    rows_of = [ROW_DTYPES[chosen]] if chosen else ROW_DTYPES.values()
    dtypes = dict.fromkeys(held for row_dtype in rows_of for held in (row_dtype, wide(row_dtype)))
    compiled: list[Any] = [loops, block, make_backend("auto", torch.device("cpu"))]
    numbers: dict[int, int] = {}
    for part in compiled:
        for dtype in dtypes:
            for function, arguments in part.samples(dtype):
                if numbers.setdefault(id(function), len(numbers)) % shares == share:
                    function.compile(tuple(numba.typeof(argument) for argument in arguments))
    if shares == 1:
        note_compiled()
