"""Which GPU a process computes on: one for each process of a host, as far as they go."""

from __future__ import annotations

from collections.abc import Mapping

from sargnn.config.run import RunConfig


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
