"""What is settled by memory before a run's workers start: its mode and budget, what is refused, and ways of training that fit.

``settle`` is called once the stores are there. A graph whose run can only be small is not planned, which would take too long.

Of the ways the fastest come first. More workers, another mode and fewer kept layers change no loss but for rounding; nor do
micro-batches, unless a norm goes over rows. bf16 rounds rows: it is offered behind those, micro-batches under a norm over rows
last, and neither is ever chosen by itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.config.groups import AUTO, MemoryConfig
from sargnn.config.losses import losses_depend_on
from sargnn.config.run import AUTO_MODES, RunConfig
from sargnn.errors import ConfigError
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, say

if TYPE_CHECKING:
    from sargnn.memory.plan_run import WorldPlan
    from sargnn.memory.plan_stores import Plans

_SMALL = 1_000_000_000
_ROW_BYTES, _EDGE_BYTES = 2048, 64
"""About what a row and an edge take in training, on all workers together, to tell small graphs from others."""
_NAMED = 2
"""Ways that a refusal names."""
_RUNTIME_BYTES = 500_000_000
_SPARE_BYTES = 256_000_000
"""Of what is free, left to the rest of the machine."""
_KEPT = 2
_BATCHES = (4, 16)
_MOST, _FEW = 6, 3
_LESS = 0.97
"""Of what a faster way holds: a slower one that holds more than this is no choice."""

_Variant = tuple[tuple[str, ...], RunConfig]
"""Overrides, and the configuration with them."""


@dataclass(frozen=True)
class Machine:
    """What a run's workers share. ``free``: bytes that are free on this machine, or left in its control group."""

    free: int
    workers: int

    @classmethod
    def here(cls, workers: int) -> Machine:
        from sargnn.partition.memory import available_bytes

        return cls(max(0, available_bytes() - _SPARE_BYTES), workers)

    @classmethod
    def of_job(cls, config: RunConfig, environment: Mapping[str, str]) -> Machine:
        """The first node of a SLURM job, with as many workers as it has tasks there."""
        tasks = re.match(r"\d+", environment.get("SLURM_TASKS_PER_NODE", ""))
        return cls.here(min(config.num_processes, int(tasks.group()) if tasks else config.num_processes))

    @property
    def share(self) -> int:
        return self.free // max(1, self.workers)


def can_be_large(num_nodes: int, num_edges: int) -> bool:
    """Whether training on such a graph may take so much memory that it is worth a plan."""
    return num_nodes * _ROW_BYTES + num_edges * _EDGE_BYTES >= _SMALL


def settle(config: RunConfig, store: Path, machine: Machine) -> tuple[RunConfig, tuple[int, ...] | None]:
    """The run with its mode and budget chosen, and what each worker's training is planned to hold; None: not planned.

    ``store`` is the dataset's. Raises ``ConfigError`` where it cannot fit, with the numbers and what would.
    """
    from sargnn.graph.dataset import open_dataset
    from sargnn.memory.plan_stores import Plans

    if config.on_host is not config:
        if config.chooses_mode:
            config = _chosen(config, AUTO_MODES[-1], "the leanest; what a GPU holds is planned by sargnn plan alone")
        return config, None
    if config.spills:
        config = with_budget(config, machine)
        if config.chooses_mode:
            config = _chosen(config, AUTO_MODES[-1], "the leanest, since tables may lie on disk")
        return config, None
    if config.of_processes is not config:
        settled, planned = settle(config.of_processes, store, machine)
        return dataclasses.replace(config, mode=settled.mode), planned if config.joins_parts else None
    if config.memory_budget.is_auto:
        config = with_budget(config, machine)
        free = f"{human_bytes(machine.free)} that are free for {machine.workers}"
        say(f"memory_budget=auto: {config.memory_budget.size} for each worker, of {free}")
    dataset = open_dataset(store, verify=False)
    # There is an account of all that it trains on before it has begun; a user's own layers may do anything.
    is_planned = config.model.name != "custom" and config.model.target is None
    if not can_be_large(dataset.num_nodes, dataset.num_edges) or not is_planned:
        limit = config.budget_bytes
        needed = _RUNTIME_BYTES + dataset.num_nodes * _ROW_BYTES + dataset.num_edges * _EDGE_BYTES
        if config.chooses_mode and is_planned and (limit is None or needed <= limit):
            config = _chosen(config, AUTO_MODES[0], "a graph as small as this fits in any mode")
        elif config.chooses_mode:
            config = _chosen(config, AUTO_MODES[-1], "the leanest; the workers themselves plan what they hold")
        return config, None
    with Steps():
        plans = Plans(dataset, store.name)
        for chosen in config.in_modes:
            plan = plans.plan(chosen)
            if fits(plan, chosen, machine):
                break
        else:
            if config.memory_budget.enforce and not _fits_leaner(plans, chosen, machine):
                raise _refusal(plans, chosen, plan, machine)
        top = plan.largest
        say(f"planned: at most {human_bytes(top.total)} a worker, in {top.phase}; {human_bytes(plan.together)} in all")
        if config.chooses_mode:
            config = _chosen(config, chosen.mode.name, "the fastest that fits")
        return config, plan.training


def fits(plan: WorldPlan, config: RunConfig, machine: Machine) -> bool:
    """Each worker within its budget, and those that are on one machine within what is free there."""
    limit, each = config.memory_budget.bytes, plan.every
    if config.budget_bytes is not None:  # its evaluations are in as many groups as that takes
        each = [worker.while_training for worker in plan.by_rank]
    within = limit is None or max(each) <= limit
    return within and sum(sorted(each)[-machine.workers :]) <= machine.free


def _fits_leaner(plans: Plans, config: RunConfig, machine: Machine) -> bool:
    """Whether workers that keep to a budget would come to fit by keeping fewer layers."""
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
    say(f"mode=auto: {mode}, {why}")
    return config.with_mode(mode)


def _refusal(plans: Plans, config: RunConfig, plan: WorldPlan, machine: Machine) -> ConfigError:
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
        hint="sargnn plan what=fit shows more; processes=1 spill=auto memory_budget=auto has tables on a disk; "
        "memory_budget.enforce=false launches it all the same",
    )


@dataclass(frozen=True)
class Way:
    """A way of training in the memory that there is: overrides, the configuration with them, and what its workers hold."""

    words: tuple[str, ...]
    config: RunConfig
    plan: WorldPlan

    @property
    def remark(self) -> str:
        """What it changes of the losses; empty where it is exact."""
        settings = losses_depend_on(self.config, norms_over_rows=self.config.norms_over_rows)
        return ", ".join(setting.brief for setting in settings)


def find_ways(
    config: RunConfig,
    plan_of: Callable[[RunConfig], WorldPlan],
    fits: Callable[[WorldPlan], bool],
    worlds: Sequence[int],
    most: int = _MOST,
    *,
    in_batches: bool = True,
) -> list[Way]:
    """What fits, at most so many ways, each slower one with less memory than those before it.

    Args:
        plan_of: raises ``ConfigError`` where a configuration cannot be planned.
        worlds: numbers of workers to try, the nearest first; the others only where none before fits.
        in_batches: try micro-batches, too, where little else fits: for them a large graph is read several times.
    """
    own = config.mode.target is not None
    modes = [config.mode.name] if own else AUTO_MODES
    in_modes = [((f"mode={mode}",), config if own else config.with_mode(mode)) for mode in modes]
    exact = [*in_modes, *leaner(*in_modes[-1])]
    rounded = (
        []
        if config.precision != "fp32"
        else [
            ((*words, "precision=bf16"), dataclasses.replace(candidate, precision="bf16"))
            for words, candidate in exact[len(in_modes) - 1 :]
        ]
    )
    batched = list(_in_batches(*in_modes[-1])) if in_batches else []
    ways: list[Way] = []

    def try_all(variants: Sequence[_Variant], among: Sequence[int]) -> None:
        before = len(ways)
        for world in among:
            more = () if world == config.world else (f"world={world}",)
            for words, candidate in variants:
                if len(ways) == most:
                    return
                candidate = dataclasses.replace(candidate, world=world)
                try:
                    plan = plan_of(candidate)
                except ConfigError:
                    continue
                if fits(plan) and all(plan.largest.total < _LESS * way.plan.largest.total for way in ways):
                    ways.append(Way((*words, *more), candidate, plan))
            if len(ways) > before:
                return

    try_all(exact, worlds)
    if len(ways) < _FEW and not config.norms_over_rows:
        try_all(batched, [ways[0].plan.world] if ways else worlds)
    try_all(rounded, [ways[0].plan.world] if ways else worlds)
    if not ways and config.norms_over_rows:
        try_all(batched, worlds)
    return ways


def leaner(words: tuple[str, ...], config: RunConfig) -> Iterator[_Variant]:
    """With fewer layers' inputs kept."""
    if config.engine.keep_layers == "all":
        engine = dataclasses.replace(config.engine, keep_layers=_KEPT)
        yield (*words, f"engine.keep_layers={_KEPT}"), dataclasses.replace(config, engine=engine)


def _in_batches(words: tuple[str, ...], config: RunConfig) -> Iterator[_Variant]:
    if config.batches.count == 1 and not config.draws_flows:
        for count in _BATCHES:
            batches = dataclasses.replace(config.batches, count=count)
            yield (*words, f"batches.count={count}"), dataclasses.replace(config, batches=batches)
