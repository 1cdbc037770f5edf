"""``--mem`` of jobs: as their runs are planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.memory.plan_stores import NotPlanned, PlannedMemory
    from sargnn.run.slurm import SlurmConfig


class JobMemory:
    """Plans the memory of the jobs of one command, each different run once, and says what is asked for and why."""

    def __init__(self) -> None:
        self._plans: dict[str, PlannedMemory | NotPlanned] = {}
        self._said: set[str] = set()

    def fill_in(self, slurm: SlurmConfig, configs: Sequence[RunConfig], per_node: int, label: str | None = None) -> SlurmConfig:
        """With ``mem`` as the runs are planned, the largest of an array's; a smaller one of the user's is answered with a line.

        Args:
            per_node: workers of a node at most.
            label: whose memory it is, where there are several jobs.
        """
        from sargnn.memory.plan_stores import JOB_BYTES, SPARE, PlannedMemory, node_bytes, slurm_bytes, slurm_text
        from sargnn.run.slurm import SITE
        from sargnn.tracking.memory import human_bytes
        from sargnn.tracking.progress import Steps

        given = None if slurm.mem in (None, SITE) else slurm_bytes(str(slurm.mem))
        if slurm.mem is not None and given is None:  # the site's, or all that a node has
            return slurm
        planned: list[PlannedMemory] = []
        with Steps():
            for config in configs:
                memory = self._plan(config)
                if not isinstance(memory, PlannedMemory):
                    if given is None:
                        self._say(f"--mem stays the site's default, for it cannot be planned: {memory.reason}")
                    return slurm
                planned.append(memory)
        largest = max(planned, key=lambda memory: node_bytes(memory, per_node))
        mem = slurm_text(node_bytes(largest, per_node))
        of = "" if label is None else f"{label}: "
        if given is not None:
            if given < node_bytes(largest, per_node):
                self._say(f"warning: {of}slurm.mem={slurm.mem} is less than is planned for a node: {mem}")
            return slurm
        workers = f"workers of up to {human_bytes(max(largest.workers))}, {min(per_node, len(largest.workers))} on a node"
        prepares = f"; preparing takes {human_bytes(largest.preparing)}" if largest.preparing else ""
        more = f"{SPARE:.0%} more and {human_bytes(JOB_BYTES)} for the job's own processes"
        self._say(f"{of}--mem={mem}: {workers}, {more}{prepares}")
        return dataclasses.replace(slurm, mem=mem)

    def _plan(self, config: RunConfig) -> PlannedMemory | NotPlanned:
        """Planned once, whatever the settings are that change no worker's memory."""
        from sargnn.memory.plan_stores import plan_memory

        alike = repr(dataclasses.replace(config, seed=0, epochs=1, eval_every=1, run_name=None, run_dir=None))
        if alike not in self._plans:
            self._plans[alike] = plan_memory(config)
        return self._plans[alike]

    def _say(self, text: str) -> None:
        from sargnn.tracking.progress import say

        if text not in self._said:
            say(text)
        self._said.add(text)
