"""``sargnn plan``: what a run will hold and send, before it is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine

if TYPE_CHECKING:
    from sargnn.config import RunConfig
    from sargnn.planner.worlds import WorldPlan

_BAR = 40


def main(line: CommandLine) -> int:
    """Print the table, what fits, and the largest worker's parts."""
    from sargnn.data.dataset import open_dataset
    from sargnn.data.prepare import prepare_dataset
    from sargnn.launch.runtime import measured_runtime
    from sargnn.partition.memory import available_bytes
    from sargnn.planner.worlds import find_cut, plan_run, smallest_world
    from sargnn.steps import step
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import Steps, say

    config, by_mode, worlds = _configurations(line)
    plans: list[WorldPlan] = []
    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=False)
        for world in worlds:
            cut = find_cut(by_mode[next(iter(by_mode))][world], dataset, path.name)
            for mode, of_mode in by_mode.items():
                one = of_mode[world]
                step(f"planning {mode} with {world}")
                plans.append(plan_run(one, dataset, cut, measured_runtime(one, typed=dataset.schema.typed)))
    here, limit = available_bytes(), config.budget_bytes
    words = f"model={config.model.name} precision={config.precision}"
    say(f"{dataset.name}, {dataset.num_nodes} nodes, {dataset.num_edges} edges, {words}, full batch")
    _print_table(plans, limit, here)
    if not all(one.exact for one in plans):
        say("~: of a cut made for this plan, a streamed one for METIS's or KaMinPar's, which have fewer halo rows.")
    say("peak: the largest worker's whole resident memory, in: the phase, of a layer. together: all workers.")
    say(f"training: above what is there before it. sends: bytes of an epoch. here: in the {human_bytes(here)} that are free.")
    for mode in by_mode if limit is not None else ():
        least = smallest_world(plans, mode, limit or 0)
        enough = f"world={least}" if least else "more than these"
        say(f"{mode}: fewest workers that each fit {human_bytes(limit or 0)}: {enough}")
    shown = next((one for one in plans if (one.mode, one.world) == (config.mode.name, config.world)), plans[0])
    say(f"mode={shown.mode} world={shown.world}, the largest worker in {shown.largest.phase}:")
    for text in _bars(shown):
        say(text)
    return 0


def _configurations(line: CommandLine) -> tuple[RunConfig, dict[str, dict[int, RunConfig]], list[int]]:
    """The run's configuration, by mode and number of workers those that are planned, and the numbers of workers."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse
    from sargnn.engine.modes import MODES
    from sargnn.errors import ConfigError

    mapping = compose_verb("plan", line.overrides, folders=line.folders)
    modes, worlds = mapping.pop("modes"), mapping.pop("worlds")
    modes, worlds = [modes] if isinstance(modes, str) else modes, [worlds] if isinstance(worlds, int) else worlds
    if not isinstance(modes, list) or not modes or not all(one in MODES for one in modes):
        raise ConfigError(
            "'modes' are modes to plan.", given=f"modes={modes}", allowed=list(MODES), hint="modes=[sar,no_remat]"
        )
    if not isinstance(worlds, list) or not worlds or not all(type(one) is int and one > 0 for one in worlds):
        raise ConfigError("'worlds' are numbers of workers.", given=f"worlds={worlds}", hint="worlds=[2,4,8]")
    chosen = mapping["mode"]["name"]
    own = [one for one in line.overrides if not one.lstrip("+").startswith(("mode=", "mode.", "world="))]
    of_mode = [one for one in line.overrides if one.lstrip("+").startswith("mode.")]
    asked = any(one.startswith("modes=") for one in line.overrides)
    by_mode: dict[str, dict[int, RunConfig]] = {}
    for mode in dict.fromkeys(modes if asked or chosen in modes else [*modes, chosen]):
        words = [*own, f"mode={mode}", *(of_mode if mode == chosen else [])]
        found: dict[int, RunConfig] = {}
        try:
            for world in worlds:
                one = compose_verb("plan", [*words, f"world={world}"], folders=line.folders)
                del one["modes"], one["worlds"]
                found[world] = parse(one)
        except ConfigError:
            if asked or mode == chosen:
                raise
            continue  # a mode that nobody has named and that these settings exclude
        by_mode[mode] = found
    first = by_mode.get(chosen) or next(iter(by_mode.values()))
    return first.get(mapping["world"], first[worlds[0]]), by_mode, worlds


def _print_table(plans: list[WorldPlan], limit: int | None, here: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sargnn.tracking.memory import human_bytes

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("mode", "world", "peak", "training", "together", "sends", "in", "fits"):
        table.add_column(title, justify="left" if title in ("mode", "in", "fits") else "right", no_wrap=True)
    for one in plans:
        top, total = one.largest, sum(worker.total for worker in one.workers)
        within = limit is not None and top.total <= limit
        fits = "both" if within and total <= here else "budget" if within else "here" if total <= here else "-"
        sent = "-" if one.sent is None else human_bytes(one.sent)
        table.add_row(
            one.mode, f"{'' if one.exact else '~'}{one.world}", human_bytes(top.total), human_bytes(top.training),
            human_bytes(total), sent, top.phase.removeprefix("layer "), fits,
        )  # fmt: skip
    Console().print(table)


def _bars(one: WorldPlan) -> Iterator[str]:
    """The largest worker's memory by its parts."""
    from sargnn.tracking.memory import human_bytes

    terms = one.largest.terms
    longest = max(terms.values())
    for name, value in terms.items():
        yield f"  {name:18}{human_bytes(value):>9} {'#' * round(_BAR * value / longest)}"
