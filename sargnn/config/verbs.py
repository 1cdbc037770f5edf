"""The settings of verbs that make stores and train nothing: prepare, check, partition, export-ogb."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sargnn.config.fields import AT_LEAST_ONE, build
from sargnn.config.groups import PreloadConfig
from sargnn.config.memory import BufferConfig
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import DATASETS, DatasetSettings


@dataclass(frozen=True)
class PrepareConfig:
    """``sargnn prepare``."""

    dataset: DatasetSettings = field(metadata=DATASETS)
    store_dir: str
    prepare: BufferConfig = BufferConfig()


@dataclass(frozen=True)
class CheckConfig(PrepareConfig):
    """``sargnn check``. ``json``: print for scripts."""

    json: bool = False


@dataclass(frozen=True)
class PartitionConfig:
    """``sargnn partition``. ``compare``: partitioners that are set side by side; ``out``: the folder of their picture."""

    dataset: DatasetSettings = field(metadata=DATASETS)
    partitioner: PartitionerConfig
    world: int = field(metadata=AT_LEAST_ONE)
    store_dir: str
    prepare: BufferConfig = BufferConfig()
    servers: int | None = field(default=None, metadata=AT_LEAST_ONE)
    compare: list[str] | None = None
    out: str = "compare"

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
    prepare: BufferConfig = BufferConfig()


def parse_export(mapping: dict[str, Any]) -> ExportConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(ExportConfig, mapping, "")


def parse_prepare(mapping: dict[str, Any]) -> PrepareConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(PrepareConfig, mapping, "")


def parse_check(mapping: dict[str, Any]) -> CheckConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(CheckConfig, mapping, "")


def parse_partition(mapping: dict[str, Any]) -> PartitionConfig:
    """Check a resolved mapping, as ``parse`` does."""
    config = build(PartitionConfig, mapping, "")
    PreloadConfig().check(config.world, config.num_servers)
    return config
