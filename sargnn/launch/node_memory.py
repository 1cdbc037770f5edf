"""What a node of a SLURM job needs, as ``--mem`` has it.

    node = max(workers + workers / 10 + 0.4 GB, preparing)

Workers: the whole resident memory of those of one node. A tenth more is for what no plan knows: SLURM ends a job that takes a
page more than it asked for. 0.4 GB are for the job's own processes beside them. Preparing: ``launch.job begin`` makes missing
stores on the first node before the workers start, within ``prepare.buffer`` and what the partitioner takes.

SLURM counts in powers of two: 1M is 2^20 bytes.
"""

from __future__ import annotations

from sargnn.launch.plan_memory import PlannedMemory

SPARE = 0.1
"""Of the workers' memory, beyond it."""
JOB_BYTES = 400_000_000
"""Of the job's script, ``srun`` and ``sargnn track --follow``, of which the last, with MLflow, was measured at 0.28 GB."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def node_bytes(planned: PlannedMemory, per_node: int) -> int:
    """What the node needs that needs most, bytes.

    Args:
        per_node: workers of a node at most. Ranks fill nodes one after the other, and not each need be full: any so many in a
            row may share one.
    """
    workers = planned.workers
    most = max(sum(workers[first : first + per_node]) for first in range(max(1, len(workers) - per_node + 1)))
    return max(int(most * (1 + SPARE)) + JOB_BYTES, planned.preparing)


def slurm_text(count: int) -> str:
    """Bytes as SLURM's ``--mem``, rounded up: ``1234M``."""
    return f"{-(-count // _UNITS['M'])}M"


def slurm_bytes(text: str) -> int | None:
    """What a ``--mem`` allows, bytes; None for 0, which is all that a node has. Without a unit it counts in M."""
    number, unit = (text, "M") if text.isdecimal() else (text[:-1], text[-1])
    return int(number) * _UNITS[unit] or None
