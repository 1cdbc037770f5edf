"""``sargnn prepare``: a dataset's store, made beforehand."""

from __future__ import annotations

from sargnn.cli.command_line import CommandLine
from sargnn.graph.edge_columns import WEIGHT


def main(line: CommandLine) -> int:
    """Make the dataset store."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.verbs import parse_prepare

    config = parse_prepare(compose_verb("prepare", line.overrides, folders=line.folders))
    from sargnn.data.dataset import open_dataset
    from sargnn.data.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps, graph_lines, say

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    size = dataset.num_edges, dataset.schema, dataset.feature_widths, dataset.num_classes, dataset.task
    lines = graph_lines(*size, weighted=WEIGHT in dataset.columns)
    say(f"{config.dataset.title_of(dataset.name)}: {lines[0]}")
    for text in lines[1:]:
        say(text)
    print(path)
    return 0
