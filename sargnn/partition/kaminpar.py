"""KaMinPar: k-way partitioning of a compressed graph, a sixth of METIS's memory (Gottesbüren et al., 2021; TeraPart, 2025).

The graph is streamed into a file (``partition.both_ways``), read compressed by a process of its own (``interop.kaminpar``) and
cut there at balanced node weights. Of a typed graph the labelled type and the total are balanced: nodes beyond a part's share
move where most of their neighbours are that have room.

Letters: N nodes, M entries of the symmetric graph, P parts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from sargnn.config_partitioner import PartitionerConfig
from sargnn.data.claim import scratch_folder
from sargnn.data.dataset import Dataset
from sargnn.errors import ConfigError
from sargnn.interop.kaminpar import cut, file_bytes, write_graph
from sargnn.partition.both_ways import rows_both_ways
from sargnn.partition.memory import entries_of
from sargnn.partition.room import Room
from sargnn.partition.weights import columns, node_weights
from sargnn.steps import step


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """KaMinPar's assignment, int32 [N]; with ``config.threads=1`` the same seed gives the same.

    Raises:
        ConfigError: the graph's file does not fit the disk, or KaMinPar fails.
    """
    n, room = dataset.num_nodes, room or Room()
    if world == 1 or n <= world:
        return (np.arange(n) % world).astype(np.int32)
    entries = entries_of(dataset)
    check_disk(room.folder, file_bytes(n, entries))
    with scratch_folder(room.folder, ".kaminpar-") as folder:
        path = folder / "graph.parhip"
        try:
            found = write_graph(
                path, n, rows_both_ways(dataset, folder, room.buffer_bytes), node_weights(dataset, config.balance)
            )
        except OSError as error:
            raise ConfigError(
                "The graph's file for KaMinPar could not be written.", given=f"{error}",
                hint="store_dir=FOLDER on a larger disk, or partitioner=stream, which writes none",
            ) from error  # fmt: skip
        if not found:
            return (np.arange(n, dtype=np.int64) * world // n).astype(np.int32)
        step("cutting with KaMinPar")
        imbalance, threads = config.imbalance, threads_of(config)
        part = cut(path, world, seed=config.seed, imbalance=imbalance, threads=threads, preset=config.preset)
    if dataset.schema.typed:
        from sargnn.partition.even import even_out

        even_out(dataset, part, world, columns(dataset, config), config.imbalance)
    return part


def threads_of(config: PartitionerConfig) -> int:
    """How many threads it has: ``config.threads``, or a core each."""
    return config.threads or len(os.sched_getaffinity(0))


def check_disk(folder: Path, wanted: float) -> None:
    """Raises ``ConfigError`` where the disk has not that much room."""
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise ConfigError(
            "The graph's file for KaMinPar does not fit the disk.",
            given=f"about {wanted / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            hint="store_dir=FOLDER on a larger disk, or partitioner=stream, which writes none",
        )  # fmt: skip
