"""``partitioner=auto``: the partitioner that fits the memory, of those that cut best first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset
from sargnn.partition import PARTITIONERS
from sargnn.partition.memory import available_bytes, cutting_bytes
from sargnn.partition.room import Room
from sargnn.resolve import resolve

CANDIDATES = {"metis": 0.5, "kaminpar": 1.0, "stream": 1.0}
"""The best cut first; of what is free each may take so much, but for the last, which is taken where nothing else fits."""


def as_candidate(config: PartitionerConfig, name: str) -> PartitionerConfig:
    """The settings of ``auto`` as those of one of the candidates; streaming balances both unless it is told otherwise."""
    balance = "both" if name == "stream" and config.balance == "nodes" else config.balance
    return replace(config, name=name, balance=balance)


def choose(dataset: Dataset, config: PartitionerConfig, limit_bytes: int) -> PartitionerConfig:
    """``config`` with the name of METIS where it fits half of what is free, else KaMinPar's, else the streaming one's; as it
    is where it names one."""
    if config.target is not None or config.name != "auto":
        return config
    *_, last = CANDIDATES
    fits = (name for name, share in CANDIDATES.items() if cutting_bytes(dataset, name) <= share * limit_bytes)
    return as_candidate(config, next(fits, last))


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """The assignment of the one that is chosen now, int32 [N]."""
    chosen = choose(dataset, replace(config, name="auto", target=None), available_bytes())
    assignment: np.ndarray = resolve("partitioner", PARTITIONERS, chosen.name)(dataset, world, chosen, room)
    return assignment
