"""``sargnn plan``: what a run will hold and send, before it is launched; and what would fit."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.command_line import CommandLine

if TYPE_CHECKING:
    from sargnn.cli.planned_graph import PlannedGraph
    from sargnn.config.run import RunConfig
    from sargnn.memory.plan_run import WorldPlan
    from sargnn.memory.plan_time import EpochTime

_BAR = 40
_WORLDS = (1, 2, 4, 8)
_SETTINGS = ("what", "modes", "worlds", "halo", "times", "picture")
_PICTURES = (".png", ".svg")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What of the command line is no setting of a run.

    Attributes:
        what: ``table`` or ``fit``. modes, worlds: to plan; None: the usual ones. halo: rows of others for each own row, where
            no graph is there. times: how long an epoch takes, too. picture: a file to draw to.
    """

    what: str
    modes: list[str]
    worlds: list[int] | None
    halo: float | None
    times: bool
    picture: Path | None


def main(line: CommandLine) -> int:
    """Print the table, what fits, and the largest worker's parts; or the ways that fit."""
    from sargnn.cli.planned_graph import planned_graph
    from sargnn.tracking.progress import Steps, say

    asked, config, by_mode, worlds = _configurations(line)
    with Steps():
        graph = planned_graph(config, asked.halo, times=asked.times)
    words = f"model={config.model.name} precision={config.precision}"
    say(f"{graph.title}, {words}")
    if asked.what == "fit":
        return _show_ways(config, graph, worlds, [*line.folders.arguments, *_of_run(line.overrides)], times=asked.times)
    plans: list[WorldPlan] = []
    times: list[EpochTime | None] = []
    with Steps():
        for world in worlds:
            for of_mode in by_mode.values():
                plans.append(graph.plan(of_mode[world]))
                times.append(graph.epoch_time(of_mode[world], plans[-1]) if asked.times else None)
    _show_table(config, plans, times, list(by_mode), graph.paper)
    for text in graph.remarks:
        say(text)
    for mode, world, time in (
        (plan.mode, plan.world, time) for plan, time in zip(plans, times, strict=True) if time is not None
    ):
        say(f"  {mode} {world}: {_work(time)}")
    shown = next((plan for plan in plans if (plan.mode, plan.world) == (config.mode.name, config.world)), plans[0])
    say(f"mode={shown.mode} world={shown.world}, the largest worker in {shown.largest.phase}:")
    for text in _bars(shown):
        say(text)
    if asked.picture is not None:
        from sargnn.report.comparison.partitions import draw_plans

        draw_plans(plans, asked.picture, title=f"{graph.name}, {words}", limit=config.memory_budget.bytes)
        say(f"picture: {asked.picture}")
    return 0


def _asked(mapping: dict[str, Any]) -> _Asked:
    """Takes them out of the mapping. Raises ``ConfigError``."""
    from sargnn.engine.modes import MODES
    from sargnn.errors import ConfigError

    what, modes, worlds, halo, times, picture = (mapping.pop(key) for key in _SETTINGS)
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
    if not isinstance(times, bool):
        raise ConfigError("'times' has the wrong type.", given=f"times={times}", allowed="true or false")
    if picture is not None and Path(str(picture)).suffix not in _PICTURES:
        raise ConfigError("A picture is a PNG or SVG file.", given=f"picture={picture}", hint="picture=plan.png")
    return _Asked(what, modes, worlds, halo, times, None if picture is None else Path(str(picture)))


def _configurations(line: CommandLine) -> tuple[_Asked, RunConfig, dict[str, dict[int, RunConfig]], list[int]]:
    """What is asked, the run's configuration, by mode and number of workers those that are planned, and the numbers."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse
    from sargnn.errors import ConfigError
    from sargnn.memory.plan_parts import PAPER_BARS

    mapping = compose_verb("plan", line.overrides, folders=line.folders)
    asked = _asked(mapping)
    run = parse(dict(mapping)).stand_in
    given = {override.lstrip("+").partition("=")[0] for override in line.overrides}
    bars = PAPER_BARS.get(run.model.name, {}) if run.dataset.name == "ogbn-papers100M" else {}
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


def _of_run(overrides: Sequence[str]) -> list[str]:
    """Those that a run takes, without what the ways decide."""
    drop = (*_SETTINGS, "mode", "world", "precision")
    return [override for override in overrides if override.lstrip("+").partition("=")[0] not in drop]


def _show_ways(config: RunConfig, graph: PlannedGraph, worlds: Sequence[int], own: Sequence[str], *, times: bool) -> int:
    """Commands to paste, the fastest first; exit code 1 where nothing fits."""
    from sargnn.memory.settle import find_ways
    from sargnn.partition.memory import available_bytes
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import Steps, say

    limit, free = config.memory_budget.bytes, available_bytes()

    def fits(plan: WorldPlan) -> bool:
        return plan.largest.total <= limit if limit is not None else plan.together <= free

    within = f"each worker within {human_bytes(limit)}" if limit is not None else f"all workers in the {human_bytes(free)} here"
    with Steps():
        ways = find_ways(config, graph.plan, fits, worlds)
        seconds = {way.words: graph.epoch_time(way.config, way.plan) if times else None for way in ways}
    ways.sort(key=lambda way: 0.0 if (time := seconds[way.words]) is None else time.seconds)
    if not ways:
        say(f"nothing that was tried fits, {within}:")
        say(f"  modes no_remat and sar, kept layers, micro-batches, bf16, up to {worlds[-1]} workers")
        return 1
    say(f"what fits, {within}, the fastest first:")
    for way in ways:
        words = [*own, *way.words, *([] if any(word.startswith("world=") for word in way.words) else [f"world={config.world}"])]
        here = "" if way.plan.together <= free else ", more than this machine has"
        rounds = f"; {way.remark}" if way.remark else ""
        took = "" if (time := seconds[way.words]) is None else f", {_seconds(time)} an epoch"
        say(f"  # {human_bytes(way.plan.largest.total)} a worker, {human_bytes(way.plan.together)} in all{took}{here}{rounds}")
        print(f"sargnn train {shlex.join(words)}", flush=True)
    return 0


def _show_table(
    config: RunConfig,
    plans: list[WorldPlan],
    times: Sequence[EpochTime | None],
    modes: Sequence[str],
    paper: dict[tuple[str, int], str],
) -> None:
    from sargnn.memory.plan_run import smallest_world
    from sargnn.partition.memory import available_bytes
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import say

    here, limit = available_bytes(), config.memory_budget.bytes
    _print_table(plans, times, limit, here, paper)
    say("peak: the largest worker's whole resident memory, in: the phase, of a layer. all: of all workers together.")
    say(f"sends: bytes of an epoch. fits: each worker the budget, all of them here in the {human_bytes(here)} that are free.")
    if any(times):
        say("epoch: on this machine's cores, and how far off that may be.")
    for mode in modes if limit is not None else ():
        least = smallest_world(plans, mode, limit or 0)
        enough = f"world={least}" if least else "more than these"
        say(f"{mode}: fewest workers that each fit {human_bytes(limit or 0)}: {enough}")


def _print_table(
    plans: list[WorldPlan], times: Sequence[EpochTime | None], limit: int | None, here: int, paper: dict[tuple[str, int], str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sargnn.tracking.memory import human_bytes

    titles = [
        "mode",
        "world",
        "peak",
        *(["paper"] if paper else []),
        "all",
        "sends",
        *(["epoch"] if any(times) else []),
        "in",
        "fits",
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in ("mode", "in", "fits") else "right", no_wrap=True)
    for plan, time in zip(plans, times, strict=True):
        top, total = plan.largest, plan.together
        within = limit is not None and top.total <= limit
        cells = {
            "mode": plan.mode,
            "world": f"{'' if plan.exact else '~'}{plan.world}",
            "peak": human_bytes(top.total),
            "paper": paper.get((plan.mode, plan.world), ""),
            "all": human_bytes(total),
            "sends": "-" if plan.sent is None else human_bytes(plan.sent),
            "epoch": "" if time is None else _seconds(time),
            "in": top.phase.removeprefix("layer "),
            "fits": "both" if within and total <= here else "budget" if within else "here" if total <= here else "-",
        }
        table.add_row(*(cells[title] for title in titles))
    Console(width=max(80, Console().width)).print(table)


def _seconds(time: EpochTime) -> str:
    return f"{time.seconds:.3g}s ±{50 * (time.high - time.low) / time.seconds:.0f}%"


def _work(time: EpochTime) -> str:
    """What an epoch computes and moves, and where its time goes."""
    from sargnn.tracking.memory import human_bytes

    return (
        f"{time.low:.3g} to {time.high:.3g} s, of that {time.exchanging_s:.2g} s exchanging; "
        f"{time.flops / 1e9:.3g} GFLOP of linear maps, {human_bytes(time.bytes_moved)} moved"
    )


def _bars(plan: WorldPlan) -> list[str]:
    """The largest worker's memory by its parts."""
    from sargnn.tracking.memory import human_bytes

    terms = plan.largest.terms
    longest = max(terms.values())
    return [
        f"  {name:18}{human_bytes(value):>9} {'#' * round(_BAR * value / longest)}".rstrip() for name, value in terms.items()
    ]
