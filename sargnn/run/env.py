"""The environment of worker processes, and of the process that starts them, complete before torch is imported; where they are,
and which GPU each computes on: one for each process of a host, as far as they go."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sargnn.config.combinations import PROCESSES, check
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.tracking.provenance import usable_cores


def default_threads(processes: int) -> int:
    """Threads of a worker's process: the cores this process may use, shared out, at least one."""
    return max(1, usable_cores() // processes)


def usual_processes(config: RunConfig) -> int:
    """``processes=auto``: one for each worker where each has a core, or where nothing less will do; else one for each
    node of the machine's memory."""
    nodes = min(config.world, len(_memory_nodes()))
    for count in (config.world, nodes, 1) if usable_cores() >= config.world else (nodes, 1):
        with suppress(ConfigError):
            placed = dataclasses.replace(config, processes=count)
            check(placed, PROCESSES)
            if count == config.world or placed.joins_parts or config.spills:
                return count
    return config.world


def _memory_nodes() -> list[Path]:
    """Those that have cores which this process may use; one where the system does not say."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    near = [node for node in nodes if any((node / f"cpu{core}").exists() for core in usable)]
    return near or [Path()]


def with_processes(config: RunConfig) -> RunConfig:
    """With the number of processes that are fast on this machine, where it is ``auto``."""
    return dataclasses.replace(config, processes=usual_processes(config)) if config.processes == "auto" else config


def with_threads(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, threads=config.threads or default_threads(config.num_processes))


def workers_of(config: RunConfig) -> str:
    return f"{config.world} worker{'s' * (config.world > 1)} {places_of(config)}"


def places_of(config: RunConfig) -> str:
    """In how many processes workers are, where these have several, and with how many threads."""
    several, threads = config.num_processes > 1, f"{config.threads} thread{'s' * (config.threads != 1)}"
    if config.num_processes == config.world:
        return f"with {threads}{' each' * several}"
    return f"in {config.num_processes} process{'es' * several} with {threads}{' each' * several}"


def worker_environment(threads: int) -> dict[str, str]:
    """Variables that workers need; threads: of each process."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for PyTorch's CPU tensors
        # glibc raises this by itself up to 32 MB; freed tensors below it stay with the process and add to its peak.
        "MALLOC_MMAP_THRESHOLD_": "1048576",
        "DGLBACKEND": "pytorch",
        # Killed workers leave semaphores to Python's resource tracker, which removes them; its remark would only alarm.
        "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
    }


def prepare_process(config: RunConfig) -> RunConfig:
    """Set what workers inherit, before torch is imported here and the fork server starts; threads filled in."""
    config = with_threads(config)
    os.environ.update(worker_environment(config.threads or 1))
    return config


def local_device_index(process: int, gpus: int, environment: Mapping[str, str]) -> int:
    """A process's GPU among those that its host shows it, of which ``CUDA_VISIBLE_DEVICES`` may name some.

    ``LOCAL_RANK``, the process's number on its host, goes before its number ``process``.
    """
    return int(environment.get("LOCAL_RANK") or process) % gpus


def gpu_lines(config: RunConfig) -> list[str]:
    """What is said where more processes share this machine's GPUs than there are."""
    if config.device != "cuda":
        return []
    import torch

    processes, gpus = config.num_processes, torch.cuda.device_count()
    if not gpus or processes <= gpus:
        return []
    usual = max(count for count in range(1, gpus + 1) if config.world % count == 0)
    return [f"{processes} processes share {gpus} GPU{'s' * (gpus > 1)}: processes={usual} would need less memory"]
