"""``sargnn train --dry-run``: what a run or a sweep would do, after every check that needs no graph; nothing is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.conf import OVERRIDING, ConfFolders, show_path
from sargnn.errors import SargnnError

if TYPE_CHECKING:
    from sargnn.cli.sweep import Point
    from sargnn.config.run import RunConfig


def show_run(config: RunConfig, overrides: Sequence[str], folders: ConfFolders, resume: Path | None = None) -> int:
    """Print what a run would do.

    Args:
        overrides: of the command line. resume: the run that would be gone on with.

    Raises:
        SargnnError: why it would not start.
    """
    check(config)
    rows = [*_folder_rows(config, resume), ("workers", _workers(config, overrides)), *_store_rows(config)]
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


def check(config: RunConfig) -> None:
    """What a run checks of its configuration before anything long. Raises ``SargnnError``."""
    from sargnn.run.check import check_network, check_strategies

    check_network(config.comm)
    config.dataset.check_files()
    check_strategies(config.stand_in)


def show_sweep(points: Sequence[Point], folders: ConfFolders) -> int:
    """Print a sweep's points, whether each is finished or cannot run; exit code 1 if one cannot.

    Raises:
        ConfigError: a point whose configuration is wrong.
    """
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.sweep import free_folder, plan_sweep
    from sargnn.config.run import parse

    plan = plan_sweep(points, folders)
    done = plan.done if plan.skip != "false" else {}
    there = f", {len(plan.done)} finished" if plan.done else ""
    print(f"sweep of {len(plan.points)} point{'s' * (len(plan.points) != 1)}{there}, in {plan.folder}")
    names = [done.get(number, free_folder(plan.folder, number)).name for number in range(len(plan.points))]
    width = max(map(len, names))
    failing = 0
    for number, (point, label, name) in enumerate(zip(plan.points, plan.labels, names, strict=True)):
        state = ""
        if number in done:
            state = "finished, would be skipped"
        else:
            try:
                check(parse(compose_verb("train", point, folders=folders)))
            except SargnnError as error:
                failing += 1
                state = f"cannot run: {str(error).splitlines()[0]}"
        print(f"  {name:<{width}}  {label}" + (f"\n  {'':<{width}}    {state}" if state else ""))
    left = len(plan.points) - len(done) - failing
    print(f"{left} would run; nothing was made or started: leave --dry-run out to start")
    return int(bool(failing))


def _folder_rows(config: RunConfig, resume: Path | None) -> Iterator[tuple[str, str]]:
    from sargnn.run.run_folder import choose_run_dir

    if resume is None:
        yield "run folder", show_path(choose_run_dir(config.run_dir, config.name))
        return
    from sargnn.run.checkpoints import check_checkpoint, check_epochs_left
    from sargnn.training import checkpoint

    check_epochs_left(config, resume)
    check_checkpoint(resume)
    newest = checkpoint.existing(resume)[-1]
    yield "run folder", f"{show_path(resume)}, on from {newest.name}"


def _workers(config: RunConfig, overrides: Sequence[str]) -> str:
    if "world=auto" in overrides:
        return "auto: as few as fit, known once the dataset is there; as with one:"
    from sargnn.run.env import default_threads

    threads = config.threads or default_threads(config.world)
    epochs = f"{config.epochs} epoch{'s' * (config.epochs != 1)}"
    return f"{config.world} with {threads} thread{'s' * (threads != 1)} each, {epochs}"


def _store_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.prepare import partition_path, with_choice
    from sargnn.run.check import partition_of
    from sargnn.sources.prepare import dataset_path

    store = config.dataset.find_store(Path(config.store_dir) / "datasets")
    if store is None and (config.dataset.reads_target or config.dataset.fetches):  # to know its name is to do it
        how = (
            f"what {config.dataset.target} returns"
            if config.dataset.reads_target
            else "its files fetched where they are missing"
        )
        yield "dataset", f"{config.dataset.title}, {how}"
        yield "partition", f"by {config.partitioner.name} into {config.world}"
        return
    path = store or dataset_path(config.dataset, config.store_dir)
    if not path.exists():
        yield "dataset", f"{show_path(path)}, would be made"
        yield "partition", f"by {config.partitioner.name} into {config.world}, would be made"
        return
    yield "dataset", f"{show_path(path)}, is there"
    wanted, dataset = partition_of(config), open_dataset(path, verify=False)
    parts, _ = partition_path(with_choice(wanted, dataset, path.name), dataset, path.name)
    yield "partition", f"{show_path(parts)}, {'is there' if parts.exists() else 'would be made'}"


def _differing(config: RunConfig, overrides: Sequence[str], folders: ConfFolders) -> Iterator[tuple[str, Any]]:
    """``key=value`` and the default, of groups whose option is another one and of settings that are not the option's own."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import flatten, parse

    groups = folders.groups("train")
    chosen = {name: option for name, option in folders.choice("train", overrides).options.items() if name not in OVERRIDING}
    for group, option in chosen.items():
        if option != groups[group]:
            yield f"{group}={option}", groups[group]
    needed = [override for override in overrides if override.partition("=")[0] in _needed(folders, chosen)]
    plain = compose_verb("train", [*(f"{group}={option}" for group, option in chosen.items()), *needed], folders=folders)
    before = flatten(parse(plain))
    for key, value in flatten(config).items():
        if key != "run_dir" and value != before.get(key):
            yield f"{key}={_written(value)}", _written(before[key]) if key in before else "not given"


def _needed(folders: ConfFolders, chosen: dict[str, str]) -> set[str]:
    """The settings without a default."""
    return {key for group, option in chosen.items() for key in folders.needs(group, option)}


def _written(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
