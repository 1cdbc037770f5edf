"""A choice by name, and that of who cuts the graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sargnn.config.fields import AT_LEAST_ONE, FREE, NOT_NEGATIVE, PATH, PLAIN_NAME, TARGET, as_mapping
from sargnn.errors import ConfigError
from sargnn.resolve import describe_file, describe_source

KAMINPAR_VERSION = 2
"""Of what ``partitioner=kaminpar`` does; part of a partition store's key."""


@dataclass(frozen=True)
class Strategy:
    """A choice by name from a table of the package, or, with ``target``, of something outside it (``sargnn.resolve``)."""

    name: str = field(metadata=PLAIN_NAME)
    target: str | None = field(default=None, kw_only=True, metadata=TARGET)

    @property
    def choice(self) -> str:
        """What ``resolve`` takes for a name: the target, or the name."""
        return self.target or self.name


@dataclass(frozen=True)
class PartitionerConfig(Strategy):
    """How nodes are assigned to workers, and the order of the nodes inside a part. A target names a function like
    ``sargnn.partition.simple.assign_range``.

    Attributes:
        imbalance: how much larger than the mean METIS, KaMinPar and streaming may make a part.
        file: the assignment of ``given`` (``sargnn.partition.simple``), or what a target reads.
        balance: what a part's size is: its nodes, its in-edges, or both as the work that they are (``partition.weights``).
        threads: of KaMinPar, and processes that order nodes and write parts; null: all cores.
        preset: of KaMinPar.
        passes: of streaming.
        coarsen: give KaMinPar the graph of clusters that passes over the edges find (``partition.clusters``), ``auto``: where
            that has no more than half of the entries.
    """

    seed: int = field(metadata=NOT_NEGATIVE)
    order: Literal["locality", "original"]
    imbalance: float = field(default=0.03, metadata=NOT_NEGATIVE)
    file: str | None = field(default=None, metadata=PATH)
    balance: Literal["nodes", "edges", "both"] = "nodes"
    threads: int | None = field(default=None, metadata=AT_LEAST_ONE | FREE)
    preset: Literal["fast", "default", "eco", "strong", "large"] = "default"
    coarsen: Literal["auto", "always", "never"] = "auto"
    passes: int = field(default=10, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        if self.target is not None or (self.file is not None) == (self.name == "given"):
            return
        if self.file is None:
            hint = "partitioner.file=FILE.npy, whole numbers [nodes]: each node's worker, by original id"
            raise ConfigError("'partitioner.file' must name the assignment.", given="partitioner=given", hint=hint)
        raise ConfigError(
            "This partitioner reads no file.",
            given=f"partitioner={self.name} partitioner.file={self.file}",
            allowed="partitioner=given",
        )

    def as_candidate(self, name: str) -> PartitionerConfig:
        """The settings of ``auto`` as those of one of the candidates; streaming balances both unless it is told otherwise."""
        balance = "both" if name == "stream" and self.balance == "nodes" else self.balance
        return replace(self, name=name, balance=balance)

    @property
    def cuts_servers(self) -> bool:
        """Whether it cuts a server's nodes as it cuts the graph; else consecutive workers are a server's."""
        return self.target is None and self.name != "given"

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the assignment, JSON-able, for the key of a partition store; of files, the content.

        Raises:
            ConfigError: a file that cannot be read.
        """
        values = as_mapping(self)
        del values["file"], values["threads"]
        for name in ("balance", "preset", "coarsen", "passes"):  # what is as it was before there was a choice stays out
            if values[name] == getattr(type(self), name):
                del values[name]
        if self.name == "kaminpar" and not self.target:
            values["version"] = KAMINPAR_VERSION
        if self.target:
            values["target"] = describe_source(self.target)
        if self.file is not None:
            try:
                values["file"] = describe_file(self.file)
            except OSError as error:
                raise ConfigError(
                    "The file of the partitioner cannot be read.",
                    given=f"{self.file}: {error.strerror}",
                    hint="partitioner.file=FILE.npy; a relative path starts at the working folder",
                ) from error
        return values
