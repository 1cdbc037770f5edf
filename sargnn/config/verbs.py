"""The settings of verbs that make stores and train nothing: prepare, check, partition, export-ogb."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sargnn.config.choices import DATASETS, DatasetSettings
from sargnn.config.combinations import SERVERS
from sargnn.config.fields import AT_LEAST_ONE, starts
from sargnn.config.groups import BufferConfig
from sargnn.config.partitioner import PartitionerConfig


@dataclass(frozen=True)
class PrepareConfig:
    """``sargnn prepare``.

    Attributes:
        store_dir: dataset and partition stores.
    """

    dataset: DatasetSettings = field(metadata=DATASETS)
    store_dir: str = field(metadata=starts("stores"))
    prepare: BufferConfig


@dataclass(frozen=True)
class CheckConfig(PrepareConfig):
    """``sargnn check``.

    Attributes:
        json: true: the same as JSON, for scripts.
    """

    json: bool = field(metadata=starts(False))


@dataclass(frozen=True)
class PartitionConfig:
    """``sargnn partition``, and what a run asks for, which has no more than the first five, ``servers`` and ``joined``.

    Attributes:
        world: parts, one per worker.
        store_dir: dataset and partition stores.
        servers: cut into so many servers first, and each of them into its share of the parts; null: 1.
        compare: several partitioners side by side, as compare=metis,kaminpar,stream,random; makes no parts.
        out: with compare: the folder of the picture.
    """

    dataset: DatasetSettings = field(metadata=DATASETS)
    partitioner: PartitionerConfig
    world: int = field(metadata=AT_LEAST_ONE | starts(4))
    store_dir: str = field(metadata=starts("stores"))
    prepare: BufferConfig = BufferConfig()
    servers: int | None = field(default=None, metadata=AT_LEAST_ONE)
    joined: int | None = None  # the number of processes whose parts lie together as one; None: each part is one of the store's
    compare: list[str] | None = None
    out: str = "compare"

    def __post_init__(self) -> None:
        SERVERS.check(self)

    @property
    def num_servers(self) -> int:
        """``servers``; 1 if not given."""
        return self.servers or 1


@dataclass(frozen=True)
class ExportConfig(PrepareConfig):
    """``sargnn export-ogb``.

    Attributes:
        out: the folder to write, such as data/ogbn_products.
        layout: csv (as ogbn-products), binary (as ogbn-papers100M), typed (as ogbn-mag); auto: what the dataset stands in for.
    """

    out: str
    layout: Literal["auto", "csv", "binary", "typed"] = field(metadata=starts("auto"))
