"""``sargnn train``: a run, or with ``--dry-run`` what it would do; ``world=auto``; and what is worth trying afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb, provisional, sweep_points
from sargnn.cli.conf import OVERRIDING, ConfFolders, show_path
from sargnn.cli.resume import read_resumed
from sargnn.cli.sweep import check_run, run_sweep, show_sweep
from sargnn.config.fields import as_mapping
from sargnn.config.groups import AUTO
from sargnn.config.run import RunConfig, flatten, parse
from sargnn.errors import ConfigError, SargnnError
from sargnn.run.check import check_strategies, partition_of
from sargnn.run.checkpoints import check_checkpoint, check_epochs_left
from sargnn.run.env import places_of, with_processes, with_threads
from sargnn.run.run_folder import choose_run_dir
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, say

_WIDTH = 80
_MOST_COMMANDS = 2
_MOST_WORKERS = 32
_LEAST_SHARE = 0.8
"""Of a budget with tables on disk, what must be in memory at most: the rest saves ways to the disk."""
_BASELINE = "mode=domain_parallel"


def main(line: CommandLine) -> int:
    if line.multirun and (resumed := [override for override in line.overrides if override.startswith("resume=")]):
        hint = "started again it runs what is not finished"
        raise ConfigError("A sweep cannot be resumed as one.", given=f"-m {' '.join(resumed)}", hint=hint)
    going_on = read_resumed(line.overrides, line.folders)
    if going_on is None:
        points = sweep_points("train", line.overrides, multirun=line.multirun, folders=line.folders)
        if points is not None:
            return show_sweep(points, line.folders) if line.dry_run else run_sweep(points, line.folders)
        composed = compose_verb("train", line.overrides, folders=line.folders)
        config = parse(provisional(composed))
        if line.dry_run:
            return _show_run(config, line.overrides, line.folders)
        overrides = list(line.overrides)
        if composed.get("world") == AUTO:
            with Steps():
                world = _fewest_workers(composed)
            say(f"world=auto: {world} worker{'s' * (world > 1)}, the fewest that fit")
            overrides = [override for override in overrides if override.lstrip("+").partition("=")[0] != "world"]
            overrides.append(f"world={world}")
            if config.processes == "auto" and not config.spills:
                overrides.append("processes=null")  # as they were planned
            config = parse(compose_verb("train", overrides, folders=line.folders))
        _train(config, [*line.folders.arguments, *overrides])
        return 0
    config, run_dir = going_on
    if line.dry_run:
        return _show_run(config, line.overrides, line.folders, resume=run_dir)
    _train(config, [f"resume={run_dir}"], run_dir)
    return 0


def _train(config: RunConfig, overrides: Sequence[str], resume: Path | None = None) -> None:
    from sargnn.run.local import train
    from sargnn.tracking.tables import profile_tables, result_table

    summary, run_dir = train(config, resume=resume)
    result_table(summary)
    profile_tables(summary)
    if summary.profile_s:
        say(f"traces for ui.perfetto.dev: {run_dir / 'traces'}")
    say(f"figures, logs and configuration: {run_dir}")
    if resume:
        return

    say("worth trying next:")
    for text in show_commands(next_commands(config, overrides, run_dir)):
        say(text)


def _fewest_workers(mapping: dict[str, Any]) -> int:
    """For ``world=auto``: workers of one machine share its cores, so that more are no faster and only hold less each."""
    from sargnn.cli.plan import planned_graph
    from sargnn.memory.plan_run import plan_spill
    from sargnn.memory.settle import Machine, can_be_large, fits, with_budget

    first = parse(provisional(mapping))
    graph = planned_graph(first, None)
    if not can_be_large(graph.num_nodes, graph.num_edges) and first.memory_budget.size is None:
        return 1
    least, world = None, 1
    while world <= _MOST_WORKERS:
        config = parse({**mapping, "world": world})
        machine = Machine.here(config.num_processes if config.spills else world)
        config = with_budget(config, machine)
        for candidate in config.in_modes:
            plan = graph.plan(candidate)
            least = plan if least is None or plan.largest.total < least.largest.total else least
            if config.spills:
                budget = config.memory_budget.bytes or machine.share
                needs = plan_spill(plan, graph.num_edges, budget)
                if min(needs.in_memory, needs.least / _LEAST_SHARE) <= budget:
                    return world
            elif fits(plan, candidate, machine):
                return world
        world *= 2
    assert least is not None
    raise ConfigError(
        f"No number of workers up to {_MOST_WORKERS} fits this machine.",
        given=f"world=auto; {least.world} take {human_bytes(least.largest.total)} each, {human_bytes(least.together)} in all",
        hint="processes=1 spill=auto memory_budget=auto, with tables on a disk; sargnn plan what=fit; or world=N and "
        "memory_budget.enforce=false",
    )


def _show_run(config: RunConfig, overrides: Sequence[str], folders: ConfFolders, resume: Path | None = None) -> int:
    """After every check that needs no graph; nothing is made."""
    check_run(config)
    if resume is None:
        folder = show_path(choose_run_dir(config.run_dir, config.name))
    else:
        from sargnn.training import checkpoint

        check_epochs_left(config, resume)
        check_checkpoint(resume)
        folder = f"{show_path(resume)}, on from {checkpoint.existing(resume)[-1].name}"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs != 1)}"
    placed = with_threads(with_processes(config))
    workers = f"{config.world} {places_of(placed)}, {epochs}"
    if "world=auto" in overrides:
        workers = "auto: as few as fit, known once the dataset is there; as with one:"
    rows = [("run folder", folder), ("workers", workers), *_store_rows(placed)]
    if config.init_from is not None and resume is None:
        from sargnn.run.checkpoints import find_start

        rows.append(("parameters", f"from {show_path(Path(str(find_start(config).init_from)))}"))
    for name, text in rows:
        print(f"{name:<12}{text}")
    differing = [] if resume is not None else list(_differing(config, overrides, folders))
    if differing:
        print("differs from the defaults:")
        width = max(len(left) for left, _ in differing)
        for left, was in differing:
            print(f"  {left:<{width}}  (default {was})")
    print("nothing was made or started: leave --dry-run out to train")
    return 0


def _store_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.prepare import partition_path, with_choice
    from sargnn.sources.prepare import dataset_path

    by = f"by {config.partitioner.name} into {config.world}"
    store, target = config.dataset.find_store(Path(config.store_dir) / "datasets"), config.dataset.target
    if store is None and (config.dataset.reads_target or config.dataset.fetches):  # to know its name is to do it
        how = f"what {target} returns" if config.dataset.reads_target else "its files fetched where they are missing"
        yield "dataset", f"{config.dataset.title}, {how}"
        yield "partition", by
        return
    path = store or dataset_path(config.dataset, config.store_dir)
    if not path.exists():
        yield "dataset", f"{show_path(path)}, would be made"
        yield "partition", f"{by}, would be made"
        return
    yield "dataset", f"{show_path(path)}, is there"
    wanted, dataset = partition_of(config), open_dataset(path, verify=False)
    parts, _ = partition_path(with_choice(wanted, dataset, path.name), dataset, path.name)
    yield "partition", f"{show_path(parts)}, {'is there' if parts.exists() else 'would be made'}"


def _differing(config: RunConfig, overrides: Sequence[str], folders: ConfFolders) -> Iterator[tuple[str, Any]]:
    """``key=value`` and the default, of groups whose option is another one and of settings that are not the option's own."""

    def written(value: Any) -> str:
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    groups = folders.groups("train")
    chosen = {name: option for name, option in folders.choice("train", overrides).options.items() if name not in OVERRIDING}
    for group, option in chosen.items():
        if option != groups[group]:
            yield f"{group}={option}", groups[group]
    without_default = {key for group, option in chosen.items() for key in folders.needs(group, option)}
    needed = [override for override in overrides if override.partition("=")[0] in without_default]
    plain = compose_verb("train", [*(f"{group}={option}" for group, option in chosen.items()), *needed], folders=folders)
    before = flatten(parse(plain))
    for key, value in flatten(config).items():
        if key != "run_dir" and value != before.get(key):
            yield f"{key}={written(value)}", written(before[key]) if key in before else "not given"


def next_commands(config: RunConfig, overrides: Sequence[str], run_dir: Path) -> list[tuple[str, str]]:
    """At most four commands, each with what it is for: the same run changed, predictions, runs side by side.

    ``overrides`` are those of the run that just ended, with its ``--config-dir``.
    """
    from sargnn.training import checkpoint

    program = ("" if shutil.which("sargnn") else f"{show_path(Path(sys.executable).parent)}/") + "sargnn"
    commands: list[tuple[str, str]] = []
    for change, purpose in _changes(config):
        if len(commands) < _MOST_COMMANDS and _can_run(config, change):
            # Without what was said of this setting, and of the options of a group that changes.
            key = change.partition("=")[0]
            dropped = (key, "run_dir", "run_name", "init_from")
            kept = [override for override in overrides if override.lstrip("+").partition("=")[0] not in dropped]
            words = [*(override for override in kept if not override.startswith(f"{key}.")), change]
            commands.append((" ".join([f"{program} train", *map(shlex.quote, words)]), purpose))
    if checkpoint.existing(run_dir):
        what = "edges" if config.predicts_edges else "nodes"
        commands.append((f"{program} predict run={shlex.quote(show_path(run_dir))}", f"its predictions for all {what}"))
    if not config.tracking.to_mlflow:
        return [*commands, (f"{program} compare", "runs side by side")]
    uri = f" tracking.uri={shlex.quote(config.tracking.uri)}" if config.tracking.uri else ""
    return [*commands, (f"{program} ui{uri}", "runs side by side, in the browser")]


def show_commands(commands: Sequence[tuple[str, str]]) -> list[str]:
    """Lines to print: each purpose behind its command where all have room, else before it."""
    behind = [f"  {command}  # {purpose}" for command, purpose in commands]
    if all(len(text) <= _WIDTH for text in behind):
        return behind
    return [text for command, purpose in commands for text in (f"  # {purpose}", f"  {command}")]


def _changes(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings to change, the most telling first."""
    if 2 * config.world <= len(os.sched_getaffinity(0)) and config.partitioner.file is None:
        yield f"world={2 * config.world}", "less memory each, the same losses"
    if config.world > 1 and config.mode.name != "domain_parallel":
        yield _BASELINE, "the same losses, in the usual way: more memory"
    if config.world > 1 and config.mode.name != "sar":
        yield "mode=sar", "the same losses in less memory"
    if config.model.name == "sage":
        yield "model=gat", "attention instead of means"
    yield f"seed={config.seed + 1}", "how much is chance?"


def _can_run(config: RunConfig, change: str) -> bool:
    key, _, value = change.partition("=")
    try:
        setting = compose_verb("train", [change])[key] if key in ("mode", "model") else int(value)
        changed = parse(as_mapping(config) | {key: setting})
        # Of all that the package computes a baseline has some kernel; whether it is DGL's takes a second to see.
        if not (change == _BASELINE and changed.kernel.choice == "auto" and changed.model.target is None):
            check_strategies(changed.stand_in)
    except SargnnError:
        return False
    return True
