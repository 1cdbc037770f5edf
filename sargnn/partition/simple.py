"""Partitioners that do not look at the edges, and those that leave it to others.

Ranges and random parts; an assignment from a file, each node's worker by original id; ``partitioner=auto``, which takes the one
that fits the memory, of those that cut best first; and servers, which are cut first, and each of them into its workers.

Letters: N nodes, P workers.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset, induced
from sargnn.graph.manifest import read_header
from sargnn.partition import PARTITIONERS
from sargnn.partition.balance import Room, runs_of_nodes
from sargnn.partition.memory import available_bytes, cutting_bytes
from sargnn.resolve import resolve

CANDIDATES = {"metis": 0.5, "kaminpar": 1.0, "stream": 1.0}
"""The best cut first; of what is free each may take so much, but for the last, which is taken where nothing else fits."""
_HINT = "numpy.save(FILE, assignment): whole numbers [nodes], each node's worker, by original id"


def assign_range(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """int32 [N]."""
    return runs_of_nodes(dataset.num_nodes, world)


def assign_random(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """A random balanced assignment from ``config.seed``: the worst case for communication. Returns int32 [N]."""
    order = np.random.default_rng(config.seed).permutation(dataset.num_nodes)
    assignment = np.empty(dataset.num_nodes, np.int32)
    assignment[order] = runs_of_nodes(dataset.num_nodes, world)
    return assignment


def assign_given(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """The assignment that ``config.file`` holds, as int32 [N]; a worker without nodes is warned of.

    Raises ``ConfigError`` naming the file where there is none, no array of whole numbers [N], or a worker that does not exist.
    """
    file = str(config.file)
    shape, dtype = check_file(file)
    if shape != (dataset.num_nodes,):
        raise ConfigError(
            f"'{file}' does not fit the graph: it must hold one number for each node.",
            given=f"{dtype} {list(shape)}",
            allowed=f"whole numbers [{dataset.num_nodes}]",
            hint=_HINT,
        )
    try:
        assignment = np.asarray(npy_format.open_memmap(file, mode="r"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}", hint=_HINT) from error
    wrong = (assignment < 0) | (assignment >= world)
    if wrong.any():
        node = int(wrong.argmax())
        raise ConfigError(
            f"'{file}' gives node {node} to a worker that does not exist.",
            given=int(assignment[node]),
            allowed=f"0 to {world - 1}",
            hint=f"world={int(assignment.max()) + 1}" if assignment.min() >= 0 else None,
        )
    idle = np.flatnonzero(np.bincount(assignment.astype(np.int64, copy=False), minlength=world) == 0)
    if len(idle):
        logging.getLogger(__name__).warning(
            f"warning: '{file}' gives no node to {len(idle)} of {world} workers, the first of them {idle[0]}."
        )
    return assignment.astype(np.int32)


def check_file(file: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array in a file, which holds whole numbers. Raises ``ConfigError``."""
    try:
        with Path(file).open("rb") as content:
            shape, dtype = read_header(content)
            missing = content.tell() + math.prod(shape) * dtype.itemsize - os.fstat(content.fileno()).st_size
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read: {error.strerror}.", hint=_HINT) from error
    except ValueError as error:
        raise ConfigError(f"'{file}' is no .npy file that can be read: {error}.", hint=_HINT) from error
    if missing > 0:
        raise ConfigError(f"'{file}' is truncated.", given=f"{missing} bytes are missing", hint=_HINT)
    if dtype.kind not in "iu":
        raise ConfigError(
            f"'{file}' must hold whole numbers.", given=f"{dtype} {list(shape)}", allowed="such as int32 or int64", hint=_HINT
        )
    return shape, dtype


def choose(dataset: Dataset, config: PartitionerConfig, limit_bytes: int) -> PartitionerConfig:
    """``config`` with the name of METIS where it fits half of what is free, else KaMinPar's, else the streaming one's; as it is
    where it names one.
    """
    if config.target is not None or config.name != "auto":
        return config
    *_, last = CANDIDATES
    fits = (name for name, share in CANDIDATES.items() if cutting_bytes(dataset, name) <= share * limit_bytes)
    return config.as_candidate(next(fits, last))


def assign_auto(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """The assignment of the one that is chosen now, int32 [N]."""
    chosen = choose(dataset, replace(config, name="auto", target=None), available_bytes())
    assignment: np.ndarray = resolve("partitioner", PARTITIONERS, chosen.name)(dataset, world, chosen, room)
    return assignment


def assign_in_servers(dataset: Dataset, assign: Callable[[Dataset, int], np.ndarray], world: int, servers: int) -> np.ndarray:
    """The worker of each node, int32 [N]: workers ``[s G, (s + 1) G)`` are server s, with G = ``world`` / ``servers``.

    ``assign``: a partitioner; gives for a graph and a number of parts each node's part.
    """
    workers = world // servers
    server_of = assign(dataset, servers)
    worker_of = server_of.astype(np.int32) * np.int32(workers)
    if workers > 1:
        for server in range(servers):
            nodes = np.flatnonzero(server_of == server)
            if len(nodes):
                worker_of[nodes] += assign(induced(dataset, nodes), workers)
    return worker_of
