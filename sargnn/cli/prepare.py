"""``sargnn prepare`` and ``sargnn partition``: the stores that training needs, made beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from sargnn.cli.help import Help, refuse_sweep, words_of
from sargnn.errors import ConfigError

PREPARE = Help(
    usage="prepare [key=value ...] [dataset=option]",
    text="Make a dataset's store: raw files, or a generator's draws, become memory-mapped arrays with checksums. Training does "
    "this by itself; here it can be done once, before many runs.",
    examples=(("prepare dataset=products_like dataset.scale=1.0", ""), ("prepare dataset=ogb_dir dataset.root=FOLDER", "")),
    config="prepare",
)
PARTITION = Help(
    usage="partition [key=value ...] [group=option ...]",
    text="Cut a dataset into the parts of 'world' workers and say how good the cut is. Training does this by itself.",
    examples=(
        ("partition dataset=products_like world=8", ""),
        ("partition dataset=products_like world=8 partitioner=random", "the worst case"),
    ),
    config="partition",
)


EXPORT = Help(
    usage="export-ogb out=FOLDER [dataset=option] [key=value ...]",
    text="Write a dataset as raw files in one of OGB's layouts, gzip CSV or deflated arrays, which OGB's own readers and this "
    "one read: to try the way of the real files at any size. Leave inverse relations out of typed graphs: "
    "dataset.add_inverse_edges=false.",
    examples=(
        ("export-ogb dataset=products_like out=data/ogbn_products", ""),
        ("export-ogb dataset=papers_like out=data/ogbn_papers100M", ""),
        ("export-ogb dataset=mag_like dataset.add_inverse_edges=false out=mag", ""),
    ),
    config="export_ogb",
)
_SYMMETRIC = ("products_like", "synthetic")


def export_ogb(arguments: Sequence[str]) -> int:
    """Write raw files."""
    if (words := words_of(EXPORT, arguments)) is None:
        return 0
    refuse_sweep(words)
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse_export

    config = parse_export(compose_verb("export_ogb", words.overrides))
    from pathlib import Path

    from sargnn.data.dataset import open_dataset
    from sargnn.data.ogb_export import export
    from sargnn.data.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps

    out = Path(config.out).expanduser()
    if getattr(config.dataset, "add_inverse_edges", False):
        raise ConfigError(
            "Inverse edges would be there twice when they are read.", given="dataset.add_inverse_edges=true",
            allowed="dataset.add_inverse_edges=false",
        )  # fmt: skip
    with Steps():
        dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
        natural = "typed" if dataset.schema.typed else "binary" if "papers" in config.dataset.name else "csv"
        layout = natural if config.layout == "auto" else config.layout
        export(dataset, out, layout, symmetric=config.dataset.name in _SYMMETRIC)
    print(out)
    return 0


def prepare(arguments: Sequence[str]) -> int:
    """Make the dataset store."""
    if (words := words_of(PREPARE, arguments)) is None:
        return 0
    refuse_sweep(words)
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse_prepare

    config = parse_prepare(compose_verb("prepare", words.overrides))
    from sargnn.data.dataset import open_dataset
    from sargnn.data.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps, graph_lines, say

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    lines = graph_lines(dataset.num_edges, dataset.schema, dataset.feature_widths, dataset.num_classes)
    say(f"{dataset.name}: {lines[0]}")
    for line in lines[1:]:
        say(line)
    print(path)
    return 0


def partition(arguments: Sequence[str]) -> int:
    """Make the dataset store and the partition store."""
    if (words := words_of(PARTITION, arguments)) is None:
        return 0
    refuse_sweep(words)
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse_partition

    config = parse_partition(compose_verb("partition", words.overrides))
    import dataclasses

    from sargnn.data.prepare import prepare_dataset
    from sargnn.partition.prepare import prepare_partition
    from sargnn.tracking.progress import Steps, partition_lines, say

    with Steps():
        info = prepare_partition(config, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))
    say(f"{info.dataset_name} by {config.partitioner.name} into {config.world}")
    for line in partition_lines(dataclasses.asdict(info.stats)):
        say(line)
    print(info.path)
    return 0
