"""An assignment from a file: each node's worker, by original id.

Letters: N nodes, P workers.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.manifest import read_header
from sargnn.partition.room import Room

_HINT = "numpy.save(FILE, assignment): whole numbers [nodes], each node's worker, by original id"


def assign_given(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """The assignment that ``config.file`` holds, as int32 [N]; a worker without nodes is warned of.

    Raises:
        ConfigError: no such file, no array of whole numbers [N], or a worker that does not exist; the file is named.
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
