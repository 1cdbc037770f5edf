"""``sargnn partition``: the workers' parts, cut beforehand, or partitioners side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine

if TYPE_CHECKING:
    from sargnn.verb_config import PartitionConfig

_WIDTH = 256
"""Numbers in a row that travels, for the bytes of a layer."""


def main(line: CommandLine) -> int:
    """Make the dataset store and the partition store; with ``compare`` the former, and a table."""
    from sargnn.cli.compose import compose_verb
    from sargnn.verb_config import parse_partition

    config = parse_partition(compose_verb("partition", line.overrides, folders=line.folders))
    if config.compare:
        return _compare(config)
    import dataclasses

    from sargnn.data.prepare import prepare_dataset
    from sargnn.partition.prepare import prepare_partition
    from sargnn.tracking.progress import Steps, partition_lines, say

    with Steps():
        info = prepare_partition(config, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))
    say(f"{info.dataset_name} by {info.partitioner} into {config.world}")
    for text in partition_lines(dataclasses.asdict(info.stats)):
        say(text)
    print(info.path)
    return 0


def _compare(config: PartitionConfig) -> int:
    from pathlib import Path

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sargnn.comparison.partitions import TITLES, Compared, count_messages, rows_of, write_picture
    from sargnn.data.dataset import open_dataset
    from sargnn.data.prepare import prepare_dataset
    from sargnn.errors import ConfigError
    from sargnn.partition import PARTITIONERS
    from sargnn.partition.memory import available_bytes, check
    from sargnn.partition.prepare import partition_path
    from sargnn.partition.room import Room
    from sargnn.partition.trial import try_out
    from sargnn.steps import step
    from sargnn.tracking.progress import Steps, say

    names, known = dict.fromkeys(config.compare or ()), [one for one in PARTITIONERS if one not in ("given", "auto")]
    for name in names:
        if name not in known:
            hint = "compare=metis,kaminpar,stream,random"
            raise ConfigError("There is no such partitioner to compare.", given=f"compare={name}", allowed=known, hint=hint)
    if config.world < 2 or config.num_servers > 1:
        given = f"world={config.world} servers={config.num_servers}"
        raise ConfigError("Several parts are compared, of one server.", given=given, allowed="world=2 or more, servers=1")
    found: list[Compared] = []
    room = Room(Path(config.store_dir) / "partitions", config.prepare.bytes)
    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        partition_path(config, dataset, path.name)  # as many nodes as parts
        room.folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            step(f"cutting by {name}")
            try:
                check(dataset, name, "original", config.world, available_bytes(), config.partitioner.coarsen)
                trial = try_out(name, path, config.world, config.partitioner, room)
            except ConfigError as error:
                say(f"left out: {name}. {error}")
                continue
            step(f"counting messages of {name}")
            found.append(Compared(trial, count_messages(dataset, trial.part, config.world)))
    if not found:
        return 1
    into = f"into {config.world}, balance={config.partitioner.balance}"
    say(f"{dataset.name}, {dataset.num_nodes} nodes, {dataset.num_edges} edges, {into}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="left" if title == TITLES[0] else "right", no_wrap=True)
    for row in rows_of(found, _WIDTH):
        table.add_row(*row)
    console = Console()
    console.print(table)
    say("peak: memory of cutting. halo rows travel in one exchange; least: rows and sums with comm.aggregate=least.")
    say(f"a layer: what its {_WIDTH} numbers a message send in a step. nodes, work: largest part / mean.")
    print(write_picture(found, Path(config.out)))
    return 0
