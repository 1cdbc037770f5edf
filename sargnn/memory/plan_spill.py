"""Whether one process can train what would not fit in its memory, with tables on its disk (``spill``): an estimate.

All workers' tables T would be in memory at one time; of those that are not, each goes to the disk and comes back several times
an epoch:

    moved = c (T - (budget - fixed))

c was measured on two graphs, GraphSage and GAT: ``_WAYS``. Where what all workers read or write to at one time, about half of
their working sets, does not fit, layers are made in groups of columns, and each table takes further ways.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from sargnn.backends.spill_file import SpillFile, whole_pages
from sargnn.memory.plan_run import WorldPlan

_WAYS, _WAYS_IN_GROUPS = 6, 9
"""Bytes moved in an epoch for a byte that has no room; in groups of columns."""
_MOST_GROUPS = 8
_TRANSIENT = 2
"""Working sets of one worker, beside what all read or write to."""
_EDGE_BYTES = 8
"""Of what lies in a mapped file."""
_MEASURED = 256 << 20


@dataclass(frozen=True)
class SpillPlan:
    """One process with all workers, bytes.

    Attributes:
        in_memory: its whole resident memory without a disk.
        least: what must be in memory.
        on_disk: tables and mapped files.
        moved: written and read in an epoch, about.
        in_groups: layers are made in groups of columns.
    """

    in_memory: int
    least: int
    on_disk: int
    moved: int
    in_groups: bool


def plan_spill(plan: WorldPlan, num_edges: int, budget: int) -> SpillPlan:
    """Of a plan with a process for each worker."""
    workers = [worker.terms for worker in plan.by_rank]
    edges = num_edges * _EDGE_BYTES
    held = max(terms["runtime"] for terms in workers) + sum(terms["parameters"] + terms["optimizer"] for terms in workers)
    held += max(0, sum(terms["graph"] for terms in workers) - edges)
    mapped = edges + sum(terms["features"] for terms in workers)
    kept, working = (sum(terms[name] for terms in workers) for name in ("kept for backward", "working set"))
    transient = _TRANSIENT * max(terms["working set"] + terms["communication"] for terms in workers)
    shown, room = working // 2, budget - held - transient
    in_groups = shown > room
    lacking = max(0, kept + working - max(0, budget - held))
    return SpillPlan(
        in_memory=held + mapped + kept + working,
        least=held + transient + shown // _MOST_GROUPS,
        on_disk=mapped + lacking,
        moved=(_WAYS_IN_GROUPS if in_groups else _WAYS) * lacking,
        in_groups=in_groups,
    )


def disk_rate(folder: Path) -> float:
    """Bytes a second that a folder's disk writes and reads, past the page cache, measured with 256 MB."""
    file, table = SpillFile(folder), torch.ones(_MEASURED, dtype=torch.uint8)
    address, size = whole_pages(table.data_ptr(), table.nbytes)
    try:
        started = time.perf_counter()
        file.write(0, address, size).result()
        file.read(0, address, size).result()
        return 2 * size / (time.perf_counter() - started)
    finally:
        file.close()
