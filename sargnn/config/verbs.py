"""The settings of verbs that make stores and train nothing: prepare, check, partition, export-ogb.

Their defaults stand in ``conf/``, where each is composed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sargnn.config.fields import AT_LEAST_ONE
from sargnn.config.groups import BufferConfig, PreloadConfig
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import DATASETS, DatasetSettings


def parts_of(process: int, processes: int, world: int) -> range:
    """Which of ``world`` parts, or workers, a process has: as many as others, or one more or less."""
    return range(process * world // processes, (process + 1) * world // processes)


@dataclass(frozen=True)
class PrepareConfig:
    """``sargnn prepare``."""

    dataset: DatasetSettings = field(metadata=DATASETS)
    store_dir: str
    prepare: BufferConfig


@dataclass(frozen=True)
class CheckConfig(PrepareConfig):
    """``sargnn check``. ``json``: print for scripts."""

    json: bool


@dataclass(frozen=True)
class PartitionConfig:
    """``sargnn partition``, and what a run asks for, which has no more than the first five, ``servers`` and ``joined``.

    Attributes:
        joined: the number of processes whose parts lie together as one; None: each part is one of the store's.
        compare: partitioners that are set side by side.
        out: the folder of their picture.
    """

    dataset: DatasetSettings = field(metadata=DATASETS)
    partitioner: PartitionerConfig
    world: int = field(metadata=AT_LEAST_ONE)
    store_dir: str
    prepare: BufferConfig = BufferConfig()
    servers: int | None = field(default=None, metadata=AT_LEAST_ONE)
    joined: int | None = None
    compare: list[str] | None = None
    out: str = "compare"

    def __post_init__(self) -> None:
        PreloadConfig().check(self.world, self.num_servers)

    @property
    def num_servers(self) -> int:
        """``servers``; 1 if not given."""
        return self.servers or 1


@dataclass(frozen=True)
class ExportConfig:
    """``sargnn export-ogb``. ``layout``: csv, binary, typed, or auto: that of the dataset which this one stands in for."""

    dataset: DatasetSettings = field(metadata=DATASETS)
    out: str
    layout: Literal["auto", "csv", "binary", "typed"]
    store_dir: str
    prepare: BufferConfig
