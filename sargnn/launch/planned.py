"""What is known of a run's memory before its workers start: what is chosen by it, what is refused, what is noted.

Called once the stores are there. A graph whose run can only be small is not planned: that would take longer than it tells.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sargnn.config.memory import AUTO, MemoryConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.launch.stores import Stores
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, say

if TYPE_CHECKING:
    from sargnn.data.dataset import Dataset
    from sargnn.launch.plans import Plans
    from sargnn.planner.worlds import WorldPlan

_SMALL = 1_000_000_000
_ROW_BYTES, _EDGE_BYTES = 2048, 64
"""About what a row and an edge take in training, on all workers together, to tell small graphs from others."""
_NAMED = 2
"""Ways that a refusal names."""
_RUNTIME_BYTES = 500_000_000
_SPARE_BYTES = 256_000_000
"""Of what is free, left to the rest of the machine."""


@dataclass(frozen=True)
class Machine:
    """What a run's workers share.

    Attributes:
        free: bytes that are free on this machine, or left in its control group. workers: of the run, on it.
    """

    free: int
    workers: int

    @classmethod
    def here(cls, workers: int) -> Machine:
        """This one."""
        from sargnn.partition.memory import available_bytes

        return cls(max(0, available_bytes() - _SPARE_BYTES), workers)

    @classmethod
    def of_job(cls, config: RunConfig, environment: Mapping[str, str]) -> Machine:
        """The first node of a SLURM job, with as many workers as it has tasks there."""
        tasks = re.match(r"\d+", environment.get("SLURM_TASKS_PER_NODE", ""))
        return cls.here(min(config.world, int(tasks.group()) if tasks else config.world))

    @property
    def share(self) -> int:
        """What each worker can have."""
        return self.free // max(1, self.workers)


def stand_in(config: RunConfig) -> RunConfig:
    """The configuration with a mode in place of ``mode=auto``, for what is checked before memory is planned."""
    return in_modes(config)[-1]


def is_auto(config: RunConfig) -> bool:
    """Whether its mode is still to be chosen."""
    return config.mode.target is None and config.mode.name == AUTO


def in_modes(config: RunConfig) -> list[RunConfig]:
    """The configuration in what ``mode=auto`` chooses from, the fastest first; alone where its mode is chosen."""
    if not is_auto(config):
        return [config]
    from sargnn.planner.choices import AUTO_MODES, with_mode

    return [with_mode(config, mode) for mode in AUTO_MODES]


def can_be_large(num_nodes: int, num_edges: int) -> bool:
    """Whether training on such a graph may take so much memory that it is worth a plan."""
    return rough_bytes(num_nodes, num_edges) >= _SMALL


def rough_bytes(num_nodes: int, num_edges: int) -> int:
    """About what training takes on all workers together, beside what they take by themselves."""
    return num_nodes * _ROW_BYTES + num_edges * _EDGE_BYTES


def settle(config: RunConfig, stores: Stores, machine: Machine) -> tuple[RunConfig, tuple[int, ...] | None]:
    """The run with its mode and budget chosen, and what each worker's training is planned to hold; None: not planned.

    Raises:
        ConfigError: it cannot fit, with the numbers and what would.
    """
    from sargnn.data.dataset import open_dataset
    from sargnn.planner.choices import AUTO_MODES

    if config.memory_budget.is_auto:
        config = with_budget(config, machine)
        free = f"{human_bytes(machine.free)} that are free for {machine.workers}"
        say(f"memory_budget=auto: {config.memory_budget.size} for each worker, of {free}")
    dataset = open_dataset(stores.dataset, verify=False)
    if not can_be_large(dataset.num_nodes, dataset.num_edges) or not _is_planned(config):
        if not is_auto(config):
            return config, None
        limit, needed = config.budget_bytes, _RUNTIME_BYTES + rough_bytes(dataset.num_nodes, dataset.num_edges)
        if _is_planned(config) and (limit is None or needed <= limit):
            return _chosen(config, AUTO_MODES[0], "a graph as small as this fits in any mode"), None
        return _chosen(config, AUTO_MODES[-1], "the leanest; the workers themselves plan what they hold"), None
    with Steps():
        return _settle_by_plan(config, dataset, stores, machine)


def _settle_by_plan(
    config: RunConfig, dataset: Dataset, stores: Stores, machine: Machine
) -> tuple[RunConfig, tuple[int, ...] | None]:
    from sargnn.launch.plans import Plans

    plans = Plans(dataset, stores.dataset.name)
    plan, chosen = None, config
    for chosen in in_modes(config):
        plan = plans.plan(chosen)
        if fits(plan, chosen, machine):
            break
    else:
        assert plan is not None
        if config.memory_budget.enforce and not _fits_leaner(plans, chosen, machine):
            raise _refusal(plans, chosen, plan, machine)
    assert plan is not None
    top = plan.largest
    say(f"planned: at most {human_bytes(top.total)} a worker, in {top.phase}; {human_bytes(plan.together)} in all")
    if is_auto(config):
        chosen = _chosen(config, chosen.mode.name, "the fastest that fits")
    return chosen, plan.training


def _is_planned(config: RunConfig) -> bool:
    """Whether there is an account of all that it trains on before it has begun; a user's own layers may do anything."""
    return config.model.name != "custom" and config.model.target is None


def fits(plan: WorldPlan, config: RunConfig, machine: Machine) -> bool:
    """Each worker within its budget, and those that are on one machine within what is free there."""
    limit, each = config.memory_budget.bytes, plan.every
    if config.budget_bytes is not None:  # its evaluations are in as many groups as that takes
        each = [worker.while_training for worker in plan.by_rank]
    within = limit is None or max(each) <= limit
    return within and sum(sorted(each)[-machine.workers :]) <= machine.free


def _fits_leaner(plans: Plans, config: RunConfig, machine: Machine) -> bool:
    """Whether workers that keep to a budget would come to fit by keeping fewer layers."""
    from sargnn.planner.choices import leaner

    if config.budget_bytes is None or config.engine.keep_layers != "all":
        return False
    return config.batches.count == AUTO or any(fits(plans.plan(lean), lean, machine) for _, lean in leaner((), config))


def with_budget(config: RunConfig, machine: Machine) -> RunConfig:
    """``memory_budget=auto`` as bytes; others as they are."""
    if not config.memory_budget.is_auto:
        return config
    size = f"{max(machine.share, 256_000_000) // 1_000_000}MB"
    return dataclasses.replace(config, memory_budget=MemoryConfig(size, config.memory_budget.enforce))


def _chosen(config: RunConfig, mode: str, why: str) -> RunConfig:
    from sargnn.planner.choices import with_mode

    say(f"mode=auto: {mode}, {why}")
    return with_mode(config, mode)


def _refusal(plans: Plans, config: RunConfig, plan: WorldPlan, machine: Machine) -> ConfigError:
    from sargnn.planner.choices import find_ways

    def fits_there(candidate: WorldPlan) -> bool:
        there = dataclasses.replace(machine, workers=round(machine.workers * candidate.world / config.world))
        return fits(candidate, config, there)

    top, limit = plan.largest, config.memory_budget.bytes
    # More workers on the same machine hold more together: they help only where each has its budget.
    worlds = [config.world] if limit is None else [config.world, 2 * config.world]
    ways = find_ways(config, plans.plan, fits_there, worlds, _NAMED, in_batches=False)
    held = sorted(((value, name) for name, value in top.terms.items()), reverse=True)[:2]
    parts = " and ".join(f"{human_bytes(value)} {name}" for value, name in held)
    there = f"{human_bytes(machine.free)} are free for {machine.workers} workers here"
    if limit is not None:
        there = f"memory_budget={human_bytes(limit)} a worker; {there}"
    return ConfigError(
        "The run would not fit in memory.",
        given=f"mode={config.mode.name} world={config.world}: {human_bytes(top.total)} a worker in {top.phase} ({parts}), "
        f"{human_bytes(plan.together)} in all; {there}",
        allowed="; ".join(
            f"{' '.join(way.words)} ({human_bytes(way.plan.largest.total)} a worker, {human_bytes(way.plan.together)} in all"
            f"{'; ' * bool(way.remark)}{way.remark})"
            for way in ways
        )
        or "nothing that was tried: a smaller model, or more machines",
        hint="sargnn plan what=fit shows more; memory_budget.enforce=false launches it all the same",
    )
