"""``sargnn partition``: the workers' parts, cut beforehand."""

from __future__ import annotations

from sargnn.cli.command_line import CommandLine


def main(line: CommandLine) -> int:
    """Make the dataset store and the partition store."""
    from sargnn.cli.compose import compose_verb
    from sargnn.verb_config import parse_partition

    config = parse_partition(compose_verb("partition", line.overrides, folders=line.folders))
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
