"""A choice by name, and that of who cuts the graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sargnn.config.fields import (
    AT_LEAST_ONE,
    FREE,
    MUST_BE_GIVEN,
    NOT_NEGATIVE,
    PATH,
    PLAIN_NAME,
    TARGET,
    as_mapping,
    only_with,
    starts,
)
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


_BALANCED = only_with("auto", "kaminpar", "metis", "stream")


@dataclass(frozen=True)
class PartitionerConfig(Strategy):
    """How nodes are assigned to workers, and the order of the nodes inside a part. A target names a function like
    ``sargnn.partition.simple.assign_range``.

    Attributes:
        seed: of what is drawn; other seeds give other parts.
        order: order of nodes inside a part: locality or original.
        imbalance: allowed excess of the largest part.
        file: FILE.npy: whole numbers [nodes], 0 to world-1, by original id.
        balance: what is balanced: nodes; edges: in-edges; both: the work that they make together.
        threads: also processes that cut; null: all cores; with 1 the same seed gives the same parts, with several nearly.
        preset: fast, default, eco, strong: from fast to good; large: for many parts.
        coarsen: first cluster nodes in passes over the edges: auto: where the graph has communities; always; never.
        passes: over all edges; better and better, but for the last ones of many.
    """

    seed: int = field(metadata=NOT_NEGATIVE | starts(0))
    order: Literal["locality", "original"] = field(metadata=starts("locality"))
    imbalance: float = field(default=0.03, metadata=NOT_NEGATIVE | _BALANCED)
    file: str | None = field(default=None, metadata=PATH | starts(MUST_BE_GIVEN) | only_with("given"))
    balance: Literal["nodes", "edges", "both"] = field(default="nodes", metadata=_BALANCED)
    threads: int | None = field(default=None, metadata=AT_LEAST_ONE | FREE | only_with("kaminpar"))
    preset: Literal["fast", "default", "eco", "strong", "large"] = field(default="default", metadata=only_with("kaminpar"))
    coarsen: Literal["auto", "always", "never"] = field(default="auto", metadata=only_with("kaminpar"))
    passes: int = field(default=10, metadata=AT_LEAST_ONE | only_with("stream"))

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
        """What decides the assignment, JSON-able, for the key of a partition store; of files, the content. Raises
        ``ConfigError``: a file that cannot be read."""
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
