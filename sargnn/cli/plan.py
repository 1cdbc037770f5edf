"""``sargnn plan``: what a run will hold and send, before it is launched; and what would fit.

A plan is made on a dataset, with its partitions or cuts made for the plan, or on a graph's published sizes.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.engine.modes import MODES
from sargnn.errors import ConfigError
from sargnn.memory.settle import find_ways
from sargnn.partition.memory import available_bytes
from sargnn.steps import step
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, say
from sargnn.tracking.tables import show_table

if TYPE_CHECKING:
    from sargnn.memory.plan_parts import Published
    from sargnn.memory.plan_run import WorldPlan

_BAR = 40
_WORLDS = (1, 2, 4, 8)
_SETTINGS = ("what", "modes", "worlds", "halo", "picture")
_PICTURES = (".png", ".svg")


class PlannedGraph(ABC):
    """What plans are made on, with directed edges. ``paper``: (mode, world) -> what a paper measured, for the table."""

    name: str
    num_nodes: int
    num_edges: int
    paper: dict[tuple[str, int], str]

    @abstractmethod
    def plan(self, config: RunConfig) -> WorldPlan:
        """Raises ``ConfigError``."""

    @property
    @abstractmethod
    def remarks(self) -> list[str]:
        """What is to be said of the figures, for a person."""


class _Here(PlannedGraph):
    def __init__(self, config: RunConfig) -> None:
        from sargnn.graph.dataset import open_dataset
        from sargnn.memory.plan_stores import Plans
        from sargnn.sources.prepare import prepare_dataset

        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=False)
        self._plans = Plans(dataset, path.name)
        self.name, self.paper = config.dataset.title_of(dataset.name), {}
        self.num_nodes, self.num_edges = dataset.num_nodes, dataset.num_edges

    def plan(self, config: RunConfig) -> WorldPlan:
        self._plans.cut(config)
        step(f"planning {config.mode.name} with {config.world}")
        return self._plans.plan(config)

    @property
    def remarks(self) -> list[str]:
        if self._plans.all_exact:
            return []
        return ["~: of a cut made for this plan, a streamed one for METIS's or KaMinPar's, which have fewer halo rows."]


class _Elsewhere(PlannedGraph):
    def __init__(self, config: RunConfig, halo: float | None) -> None:
        from sargnn.memory.plan_parts import PUBLISHED

        name = config.dataset.name
        self._graph: Published = PUBLISHED[name].as_configured(config.dataset)
        self._given = halo
        self._halos: dict[int, float] = {}
        self.name = f"{name} by its published size"
        self.num_nodes, self.num_edges = self._graph.num_nodes, self._graph.num_edges
        self.paper = {
            (mode, world): "no room" if value is None else f"{value} GB"
            for mode, of_mode in _paper_bars(config).items()
            for world, value in of_mode.items()
        }

    def plan(self, config: RunConfig) -> WorldPlan:
        from sargnn.memory.plan_parts import halo_of
        from sargnn.memory.plan_run import plan_published
        from sargnn.memory.runtime import measured_runtime

        halo = self._given if self._given is not None else halo_of(self._graph, config.world)
        if halo is None:  # then no more than an edge each brings
            halo = min(config.world - 1.0, self.num_edges * (1 - 1 / config.world) / self.num_nodes)
        self._halos[config.world] = halo
        step(f"planning {config.mode.name} with {config.world}")
        return plan_published(config, self._graph, halo, measured_runtime(config, typed=self._graph.schema.typed))

    @property
    def remarks(self) -> list[str]:
        each = ", ".join(f"{halo:.3g} with {world}" for world, halo in sorted(self._halos.items()))
        how = "as given" if self._given is not None else self._graph.source or "the most that there can be"
        return [
            "~: of published sizes, in equal parts; sends: at most.",
            f"halo: rows of others for each own row, {each} workers ({how}); halo=R sets it.",
        ]


def _paper_bars(config: RunConfig) -> dict[str, dict[int, float | None]]:
    """Mode -> number of workers -> what the SAR paper measured of this run, in GB; None: no room."""
    from sargnn.memory.plan_parts import PAPER_BARS

    return PAPER_BARS.get(config.model.name, {}) if config.dataset.name == "ogbn-papers100M" else {}


def planned_graph(config: RunConfig, halo: float | None) -> PlannedGraph:
    """The dataset, prepared if need be; published sizes where it would have to be fetched, or ``halo`` is given.

    Raises ``ConfigError``: ``halo`` of a graph that has no published sizes.
    """
    from sargnn.memory.plan_parts import PUBLISHED

    here = config.dataset.is_here(Path(config.store_dir) / "datasets")
    if halo is None and (here or config.dataset.name not in PUBLISHED):
        return _Here(config)
    if config.dataset.name not in PUBLISHED:
        raise ConfigError(
            "A dataset's cut says how many rows of others are read.", given=f"halo={halo}", allowed=list(PUBLISHED)
        )
    return _Elsewhere(config, halo)


@dataclass(frozen=True)
class _Asked:
    """What of the command line is no setting of a run.

    Attributes:
        what: ``table`` or ``fit``.
        worlds: None: the usual ones.
        halo: rows of others for each own row, where no graph is there.
        picture: a file to draw to.
    """

    what: str
    modes: list[str]
    worlds: list[int] | None
    halo: float | None
    picture: Path | None


def main(line: CommandLine) -> int:
    asked, config, by_mode, worlds = _configurations(line)
    device, config = config.device, config.on_host
    by_mode = {mode: {world: of_world.on_host for world, of_world in of_mode.items()} for mode, of_mode in by_mode.items()}
    with Steps():
        graph = planned_graph(config, asked.halo)
    words = f"model={config.model.name} precision={config.precision}"
    say(f"{graph.name}, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {words}")
    if asked.what == "fit":
        # What a run takes, without what the ways decide.
        drop = (*_SETTINGS, "mode", "world", "precision")
        own = [override for override in line.overrides if override.lstrip("+").partition("=")[0] not in drop]
        return _show_ways(config, graph, worlds, [*line.folders.arguments, *own])
    plans: list[WorldPlan] = []
    with Steps():
        for world in worlds:
            for of_mode in by_mode.values():
                plans.append(graph.plan(of_mode[world]))
    _show_table(config, plans, list(by_mode), graph.paper)
    for text in graph.remarks:
        say(text)
    shown = next((plan for plan in plans if (plan.mode, plan.world) == (config.mode.name, config.world)), plans[0])
    say(f"mode={shown.mode} world={shown.world}, the largest worker in {shown.largest.phase}:")
    longest = max(shown.largest.terms.values())
    for name, value in shown.largest.terms.items():
        say(f"  {name:18}{human_bytes(value):>9} {'#' * round(_BAR * value / longest)}".rstrip())
    say("runtime: of the libraries, measured on this machine; all else is the same on any")
    if device != "cpu":
        there = human_bytes(shown.largest.total - shown.largest.terms["runtime"])
        say(f"device={device}: all but the runtime lies there, {there} as a CPU's kernels hold it; the runtime and the")
        say("  device's libraries lie on the host. What fits is said of the host alone.")
    if config.spills:
        _say_spill(config, shown, graph.num_edges)
    if asked.picture is not None:
        from sargnn.report.partitions import draw_plans

        draw_plans(plans, asked.picture, title=f"{graph.name}, {words}", limit=config.memory_budget.bytes)
        say(f"picture: {asked.picture}")
    return 0


def _asked(mapping: dict[str, Any]) -> _Asked:
    """Takes them out of the mapping. Raises ``ConfigError``."""
    what, modes, worlds, halo, picture = (mapping.pop(key) for key in _SETTINGS)
    modes, worlds = [modes] if isinstance(modes, str) else modes, [worlds] if isinstance(worlds, int) else worlds
    if what not in ("table", "fit"):
        raise ConfigError("'what' has a value that is not known.", given=f"what={what}", allowed="table, fit")
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        raise ConfigError(
            "'modes' are modes to plan.", given=f"modes={modes}", allowed=list(MODES), hint="modes=[sar,no_remat]"
        )
    if worlds is not None and (
        not isinstance(worlds, list) or not worlds or not all(type(world) is int and world > 0 for world in worlds)
    ):
        raise ConfigError("'worlds' are numbers of workers.", given=f"worlds={worlds}", hint="worlds=[2,4,8]")
    if halo is not None and (isinstance(halo, bool) or not isinstance(halo, int | float) or halo < 0):
        raise ConfigError("'halo' is how many rows of others are read for each own row.", given=f"halo={halo}", hint="halo=6.2")
    if picture is not None and Path(str(picture)).suffix not in _PICTURES:
        raise ConfigError("A picture is a PNG or SVG file.", given=f"picture={picture}", hint="picture=plan.png")
    return _Asked(what, modes, worlds, halo, None if picture is None else Path(str(picture)))


def _configurations(line: CommandLine) -> tuple[_Asked, RunConfig, dict[str, dict[int, RunConfig]], list[int]]:
    """What is asked, the run's configuration, by mode and number of workers those that are planned, and the numbers."""
    mapping = compose_verb("plan", line.overrides, folders=line.folders)
    asked = _asked(mapping)
    if (processes := mapping["processes"]) not in (None, "auto"):
        raise ConfigError(
            "A plan is of workers that have a process of their own; one of several workers holds no more than such a worker.",
            given=f"processes={processes}",
            hint=f"worlds=[{processes}], without processes",
        )
    run = parse(dict(mapping)).stand_in
    given = {override.lstrip("+").partition("=")[0] for override in line.overrides}
    bars = _paper_bars(run)
    usual = {world for of_mode in bars.values() for world in of_mode} or set(_WORLDS)
    if "world" in given or not bars:
        usual.add(run.world)
    worlds = asked.worlds or sorted(usual)
    if asked.what == "fit" and asked.worlds is None:
        worlds = [run.world, *(workers for workers in (*_WORLDS, 16, 32, 64, 128) if workers > run.world)]
    chosen = run.mode.name
    own = [override for override in line.overrides if not override.lstrip("+").startswith(("mode=", "mode.", "world="))]
    of_mode = [override for override in line.overrides if override.lstrip("+").startswith("mode.")]
    by_mode: dict[str, dict[int, RunConfig]] = {}
    modes = [] if asked.what == "fit" else asked.modes  # what fits is tried in modes of its own
    for mode in dict.fromkeys(modes if modes and ("modes" in given or chosen in modes) else [*modes, chosen]):
        words = [*own, f"mode={mode}", *(of_mode if mode == chosen else [])]
        by_world: dict[int, RunConfig] = {}
        try:
            composed = compose_verb("plan", words, folders=line.folders)
            for key in _SETTINGS:
                del composed[key]
            for world in dict.fromkeys([*worlds, run.world]):
                by_world[world] = parse({**composed, "world": world})
        except ConfigError:
            if "modes" in given or mode == chosen:
                raise
            continue  # a mode that nobody has named and that these settings exclude
        by_mode[mode] = by_world
    first = by_mode.get(chosen) or next(iter(by_mode.values()))
    return asked, first[run.world if run.world in worlds else worlds[0]], by_mode, list(worlds)


def _show_ways(config: RunConfig, graph: PlannedGraph, worlds: Sequence[int], own: Sequence[str]) -> int:
    """Commands to paste, the fastest first; exit code 1 where nothing fits."""
    limit, free = config.memory_budget.bytes, available_bytes()

    def fits(plan: WorldPlan) -> bool:
        return plan.largest.total <= limit if limit is not None else plan.together <= free

    within = f"each worker within {human_bytes(limit)}" if limit is not None else f"all workers in the {human_bytes(free)} here"
    with Steps():
        ways = find_ways(config, graph.plan, fits, worlds)
    if not ways:
        say(f"nothing that was tried fits, {within}:")
        say(f"  modes no_remat and sar, kept layers, micro-batches, bf16, up to {worlds[-1]} workers")
        return 1
    say(f"what fits, {within}, the fastest first:")
    for way in ways:
        words = [*own, *way.words, *([] if any(word.startswith("world=") for word in way.words) else [f"world={config.world}"])]
        here = "" if way.plan.together <= free else ", more than this machine has"
        rounds = f"; {way.remark}" if way.remark else ""
        say(f"  # {human_bytes(way.plan.largest.total)} a worker, {human_bytes(way.plan.together)} in all{here}{rounds}")
        print(f"sargnn train {shlex.join(words)}", flush=True)
    return 0


def _show_table(config: RunConfig, plans: list[WorldPlan], modes: Sequence[str], paper: dict[tuple[str, int], str]) -> None:
    from sargnn.memory.plan_run import smallest_world

    here, limit = available_bytes(), config.memory_budget.bytes
    rows = []
    for plan in plans:
        top, total = plan.largest, plan.together
        within = limit is not None and top.total <= limit
        rows.append(
            {
                "mode": plan.mode,
                "world": f"{'' if plan.exact else '~'}{plan.world}",
                "peak": human_bytes(top.total),
                "paper": paper.get((plan.mode, plan.world), ""),
                "all": human_bytes(total),
                "sends": "-" if plan.sent is None else human_bytes(plan.sent),
                "in": top.phase.removeprefix("layer "),
                "fits": "both" if within and total <= here else "budget" if within else "here" if total <= here else "-",
            }
        )
    titles = [title for title in rows[0] if paper or title != "paper"]
    show_table(titles, [[row[title] for title in titles] for row in rows], words=("mode", "in", "fits"))
    say("peak: the largest worker's whole resident memory, in: the phase, of a layer. all: of all workers together.")
    say(f"sends: bytes of an epoch. fits: each worker the budget, all of them here in the {human_bytes(here)} that are free.")
    for mode in modes if limit is not None else ():
        least = smallest_world(plans, mode, limit or 0)
        enough = f"world={least}" if least else "more than these"
        say(f"{mode}: fewest workers that each fit {human_bytes(limit or 0)}: {enough}")


def _say_spill(config: RunConfig, plan: WorldPlan, num_edges: int) -> None:
    """Whether one process with all workers of a plan keeps to the budget with a disk, and what that moves."""
    from sargnn.memory.plan_run import disk_rate, plan_spill

    budget = config.memory_budget.bytes or available_bytes()
    needs, rate = plan_spill(plan, num_edges, budget), disk_rate(Path(config.spill_dir or config.store_dir))
    say(f"one process, processes=1 spill={config.spill} memory_budget={human_bytes(budget)}, {plan.world} parts, about:")
    say(f"  {human_bytes(needs.in_memory)} without a disk, of which at least {human_bytes(needs.least)} must be in memory")
    if needs.least > budget:
        say("  more parts (world=N) need less; so does precision=bf16")
        return
    groups = ", layers in groups of columns" if needs.in_groups else ""
    say(f"  {human_bytes(needs.on_disk)} on disk, {human_bytes(needs.moved)} written and read an epoch{groups}")
    say(f"  {needs.moved / rate:.0f} s an epoch for the disk, at the {rate / 1e9:.1f} GB/s that it had just now")
