"""``sargnn partition``: the workers' parts, cut beforehand, or partitioners side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig

_NONE = ("compare=null", "compare=")


def main(line: CommandLine) -> int:
    """Make the dataset store and the partition store; with ``compare`` the former, and a table."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.fields import build
    from sargnn.config.verbs import PartitionConfig

    if any(override.lstrip("+").startswith("compare=") and override not in _NONE for override in line.overrides):
        return _compare(line)
    config = build(PartitionConfig, compose_verb("partition", line.overrides, folders=line.folders), "")
    import dataclasses

    from sargnn.partition.prepare import prepare_partition
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps, partition_lines, say

    with Steps():
        info = prepare_partition(config, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))
    say(f"{config.dataset.title_of(info.dataset_name)} by {info.partitioner} into {config.world}")
    for text in partition_lines(dataclasses.asdict(info.stats)):
        say(text)
    print(info.path)
    return 0


def _compare(line: CommandLine) -> int:
    from pathlib import Path

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sargnn.errors import ConfigError
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.balance import Room
    from sargnn.partition.memory import available_bytes, check
    from sargnn.partition.prepare import partition_path
    from sargnn.partition.trial import try_out
    from sargnn.report.comparison.partitions import TITLES, Compared, compared, rows_of, write_picture
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.steps import step
    from sargnn.tracking.progress import Steps, say

    configs, out = _configurations(line)
    first = next(iter(configs.values()))
    if first.world < 2 or first.num_servers > 1:
        given = f"world={first.world} servers={first.num_servers}"
        raise ConfigError("Several parts are compared, of one server.", given=given, allowed="world=2 or more, servers=1")
    comparisons: list[Compared] = []
    room = Room(Path(first.store_dir) / "partitions", first.prepare.bytes)
    with Steps():
        path = prepare_dataset(first.dataset, first.store_dir, first.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        partition_path(first, dataset, path.name)  # as many nodes as parts
        room.folder.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            step(f"cutting by {name}")
            try:
                check(dataset, name, "original", config.world, available_bytes(), config.partitioner.coarsen)
                trial = try_out(name, path, config.world, config.partitioner, room)
            except ConfigError as error:
                say(f"left out: {name}. {error}")
                continue
            step(f"counting messages of {name}")
            comparisons.append(compared(trial, dataset, config))
    if not comparisons:
        return 1
    say(f"{first.dataset.title_of(dataset.name)}, {dataset.num_nodes} nodes, {dataset.num_edges} edges, into {first.world}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="left" if title == TITLES[0] else "right", no_wrap=True)
    for row in rows_of(comparisons):
        table.add_row(*row)
    console = Console()
    console.print(table)
    say("peak: memory of cutting. halo rows travel in one exchange; least: rows and sums with comm.aggregate=least.")
    words = [f"model={first.model.name}", f"mode={first.mode.name}", f"precision={first.precision}"]
    words += [f"comm.aggregate={first.comm.aggregate}"] if first.comm.aggregate else []
    say(f"epoch: what all workers send in one, full batch, with {' '.join(words)}. nodes, work: largest part / mean.")
    print(write_picture(comparisons, Path(out)))
    return 0


def _configurations(line: CommandLine) -> tuple[dict[str, RunConfig], str]:
    """A run's configuration for each partitioner that is compared, with its own settings; the folder of the picture.

    Settings of partitioners are given to those that have them.
    """
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.conf import find_folders
    from sargnn.config.run import parse
    from sargnn.errors import ConfigError
    from sargnn.partition import PARTITIONERS

    folders = line.folders or find_folders()
    chosen = [override for override in line.overrides if not override.startswith("partitioner=")]
    own = [override for override in chosen if override.lstrip("+").startswith("partitioner.")]
    others = [override for override in chosen if override not in own]
    mapping = compose_verb("partition_compare", others, folders=folders)
    names, out = mapping.pop("compare"), mapping.pop("out")
    known = [partitioner for partitioner in PARTITIONERS if partitioner not in ("given", "auto")]
    if not isinstance(out, str) or not out:
        raise ConfigError("'out' must be a folder.", given=repr(out))
    configs: dict[str, RunConfig] = {}
    unused = dict.fromkeys(own)
    for name in dict.fromkeys(map(str, names) if isinstance(names, list) else [str(names)]):
        if name not in known:
            hint = "compare=metis,kaminpar,stream,random"
            raise ConfigError("There is no such partitioner to compare.", given=f"compare={name}", allowed=known, hint=hint)
        has = folders.settings_of("partitioner", name)
        its = [override for override in own if override.partition("=")[0].lstrip("+") in has]
        mapping = compose_verb("partition_compare", [*others, f"partitioner={name}", *its], folders=folders)
        del mapping["compare"], mapping["out"]
        configs[name] = parse(mapping)
        for override in its:
            unused.pop(override, None)
    if not configs:
        raise ConfigError("No partitioner is named.", given=f"compare={names}", hint="compare=metis,kaminpar,stream,random")
    for override in unused:
        raise ConfigError("None of the partitioners that are compared has this setting.", given=override, allowed=list(configs))
    return configs, out
