"""KaMinPar and streaming beside METIS and random parts, as a Markdown table for docs/maintainers/measured.md.

    .venv/bin/python scripts/partition_table.py STORES WORLD ROUNDS NAMES SETTING ...

makes the dataset of the settings (``dataset=products_like dataset.scale=0.1``) in STORES if it is not there, and cuts it into
WORLD parts by each of NAMES, ``metis,kaminpar,kaminpar/fast/never,stream`` (a preset behind a name, then coarsen, then
balance): one after the other, ROUNDS times over. Times are medians.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sargnn.cli.compose import compose_verb
from sargnn.config.fields import build
from sargnn.config.verbs import PartitionConfig
from sargnn.graph.dataset import open_dataset
from sargnn.partition.balance import Room
from sargnn.partition.memory import entries_of
from sargnn.partition.trial import Trial, try_out
from sargnn.sources.prepare import prepare_dataset

_BUFFER = 256 << 20


def main() -> int:
    """The command line; an exit code."""
    if len(sys.argv) < 6:
        print(__doc__)
        return 2
    stores, world, rounds = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    config = build(PartitionConfig, compose_verb("partition", [*sys.argv[5:], f"store_dir={stores}"]), "")
    path = prepare_dataset(config.dataset, str(stores), config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    entries, names = entries_of(dataset), sys.argv[4].split(",")
    found: dict[str, list[Trial]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            plain, *said = name.split("/")
            given: dict[str, Any] = dict(zip(("preset", "coarsen", "balance"), said, strict=False))
            settings = replace(config.partitioner, **given)
            found[name].append(try_out(plain, path, world, settings, Room(stores, _BUFFER)))
    first = found[names[0]]
    base = first[0].quality, statistics.median(one.seconds for one in first), max(one.peak_bytes for one in first)
    title = f"{dataset.name}, {dataset.num_nodes} nodes, {entries:.3g} entries, {world} parts"
    for name, trials in found.items():
        quality, of_first = trials[0].quality, base[0]
        seconds, peak = statistics.median(one.seconds for one in trials), max(one.peak_bytes for one in trials)
        cells = [
            title, f"`{name}`", f"{seconds:.1f}", f"{seconds / base[1]:.2f}", f"{peak / 1e6:.0f}",
            f"{peak / max(1, base[2]):.3f}", f"{peak / entries:.1f}", f"{peak / dataset.num_nodes:.0f}",
            f"{quality.edge_cut:.4f}", f"{quality.edge_cut / of_first.edge_cut:.3f}", f"{quality.halo_rows}",
            f"{quality.halo_rows / of_first.halo_rows:.3f}", f"{quality.node_balance:.2f}", f"{quality.work_balance:.2f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
        title = ""
    return 0


if __name__ == "__main__":
    sys.exit(main())
